#include "exec/memory_report.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/text.h"
#include "report/machine.h"
#include "report/table.h"

namespace ftrun {
namespace {

int64_t mapped_of_peers(const TrainingSetup& setup) {
  const RankGroups& groups = setup.groups();
  const auto shared = [&](CommGroup group) {
    const Communicator* used = groups.find(group);
    return used != nullptr && used->backend() == "shm";
  };
  return mapped_peer_bytes({&setup.train().program, &setup.evaluate().program},
                           setup.plan().options.state, shared);
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.2f %%", 100 * share);
  return text;
}

using Row = std::vector<std::string>;

Row row(Tier tier, std::string_view what, int64_t predicted, int64_t allocated) {
  return {std::string(tier_name(tier)),   std::string(what),
          std::to_string(predicted),      std::to_string(allocated),
          std::to_string(allocated - predicted), human_bytes(allocated)};
}

void tier_rows(Tier tier, const TierPlan& planned, const RankMemory::Allocated& allocated,
               std::vector<Row>& rows) {
  if (planned.total == 0 && allocated.total == 0) return;
  for (size_t c = 0; c < kCategoryCount; ++c)
    if (planned.persistent[c] > 0 || allocated.persistent[c] > 0)
      rows.push_back(row(tier, category_name(static_cast<Category>(c)), planned.persistent[c],
                         allocated.persistent[c]));
  if (planned.arenas > 0 || allocated.arenas > 0)
    rows.push_back(row(tier, "for a time", planned.arenas, allocated.arenas));
  rows.push_back(row(tier, "all", planned.total, allocated.total));
}

/// What shares the arenas of a tier.
std::string arena_text(Tier tier, const TierPlan& planned) {
  if (planned.arenas == 0) return "";
  return cat(tier_name(tier), " for a time, at most: ", categories_text(planned.arena_peak),
             "; fullest at ", planned.fullest, "\n");
}

}  // namespace

double MemoryReport::error() const {
  const auto expected = static_cast<double>(predicted());
  return expected > 0 ? (static_cast<double>(measured) - expected) / expected : 0;
}

MemoryReport report_memory(const TrainingSetup& setup, int64_t measured) {
  MemoryReport report;
  report.planned = memory_plan(setup.plan());
  for (const Tier tier : kTiers)
    report.allocated[static_cast<size_t>(tier)] = setup.memory().allocated(tier);
  report.fixed = setup.held_before();
  report.peers = mapped_of_peers(setup);
  report.measured = measured;
  if (const Gpu* gpu = setup.memory().gpu()) report.gpu = gpu->kernels().memory();
  return report;
}

std::string memory_text(const MemoryReport& report) {
  std::vector<Row> rows;
  std::string arenas;
  for (const Tier tier : kTiers) {
    tier_rows(tier, report.planned.at(tier), report.allocated[static_cast<size_t>(tier)], rows);
    arenas += arena_text(tier, report.planned.at(tier));
  }
  std::string process = cat("process: ", human_bytes(report.planned_in_main_memory()), " planned + ",
                            human_bytes(report.fixed), " before");
  if (report.peers > 0) process += cat(" + ", human_bytes(report.peers), " of peers at a time");
  process += cat(" = ", human_bytes(report.predicted()), " predicted, ", human_bytes(report.measured),
                 " measured at most, error ", percent(report.error()));
  if (report.on_gpu())
    arenas += cat("GPU: ", human_bytes(report.gpu.total_bytes - report.gpu.free_bytes), " of ",
                  human_bytes(report.gpu.total_bytes), " in use at the end, CUDA's own among it\n");
  return "\nmemory of rank 0\n" +
         format_table({"tier", "category", "predicted", "allocated", "error", ""}, rows) + arenas + process;
}

std::map<std::string, std::map<std::string, int64_t>> memory_record(const MemoryReport& report) {
  std::map<std::string, std::map<std::string, int64_t>> record;
  const auto note = [&](Tier tier, std::string_view what, int64_t predicted, int64_t allocated) {
    if (predicted == 0 && allocated == 0) return;
    const std::string name = cat(tier_name(tier), "_", what);
    record["predicted"][name] = predicted;
    record["allocated"][name] = allocated;
  };
  for (const Tier tier : kTiers) {
    const TierPlan& planned = report.planned.at(tier);
    const RankMemory::Allocated& allocated = report.allocated[static_cast<size_t>(tier)];
    for (size_t c = 0; c < kCategoryCount; ++c)
      note(tier, category_name(static_cast<Category>(c)), planned.persistent[c], allocated.persistent[c]);
    note(tier, "arenas", planned.arenas, allocated.arenas);
    note(tier, "total", planned.total, allocated.total);
  }
  record["process"] = {{"fixed", report.fixed},
                       {"peers", report.peers},
                       {"predicted", report.predicted()},
                       {"measured", report.measured}};
  if (report.on_gpu())
    record["gpu"] = {{"used", report.gpu.total_bytes - report.gpu.free_bytes}, {"total", report.gpu.total_bytes}};
  return record;
}

std::vector<NamedBytes> memory_metrics(const TrainingSetup& setup) {
  std::vector<NamedBytes> figures;
  const MemoryPlan plan = memory_plan(setup.plan());
  for (const Tier tier : kTiers)
    for (size_t c = 0; c < kCategoryCount; ++c) {
      const auto category = static_cast<Category>(c);
      const int64_t bytes = plan.at(tier).of(category);
      if (bytes > 0)
        figures.push_back({cat(tier == Tier::kDevice ? "" : cat(tier_name(tier), "_"), category_name(category)), bytes});
    }
  return figures;
}

PeakMemory::PeakMemory() : resident_before_(read_process_memory().peak_resident) {}

int64_t PeakMemory::held() const {
  const ProcessMemory now = read_process_memory();
  // A peak that came while files were read has their pages in it.
  if (now.peak_resident == resident_before_) return now.held();
  return std::max(now.held(), now.peak_resident - now.file_backed);
}

}  // namespace ftrun
