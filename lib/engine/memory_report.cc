#include "engine/memory_report.h"

#include <algorithm>

#include "base/error.h"
#include "base/machine_info.h"
#include "base/table.h"
#include "base/text.h"
#include "kernels/kernels.h"

namespace ftrun {
namespace {

/// Returns a predicate: whether a group of the programs communicates over shared memory.
auto over_shared_memory(const TrainingSetup& setup) {
  return [&communicators = setup.communicators()](const ProgramGroup& group) {
    const Communicator* used = communicators.find_communicator(group);
    return used != nullptr && used->backend() == "shm";
  };
}

/// An upper bound on the bytes that each thread of a training process needs in addition to the plan
/// and attention's tiles: its stack, and the heap of records and libraries (docs/memory-peaks.md).
constexpr int64_t kHeapOfThread = 896 << 10;
/// Upper bounds on memory that cannot be counted: that of the process, and that of the threads that
/// run the lanes of each group.
constexpr int64_t kHeapOfProcess = 512 << 10, kHeapOfGroup = 128 << 10;

/// Returns an upper bound on the memory that a process needs in addition to the plan and its peers'
/// memory while it trains on CPUs.
int64_t working_bytes(const TrainingSetup& setup) {
  const int64_t of_thread = kHeapOfThread + attention_tile_bytes(setup.model_config().head_size);
  int64_t bytes = kHeapOfProcess + kernel_threads() * of_thread;
  for (const Communicator* group : setup.communicators().distinct_communicators())
    if (group->size() > 1) bytes += kHeapOfGroup + group->working_bytes();
  return bytes + staged_peer_bytes(setup.plan().programs(), over_shared_memory(setup));
}

using Row = std::vector<std::string>;

/// Returns the touched bytes, or the allocated bytes if the touched ones are not known.
int64_t peak_bytes(Tier tier, int64_t allocated, int64_t touched, bool on_gpu) {
  const bool pages_are_known = tier == Tier::kHost || (tier == Tier::kDevice && !on_gpu);
  return pages_are_known && touched > 0 ? touched : allocated;
}

/// Calls `line` for each part of a tier that has bytes, with the name of the part (a category,
/// "temporary", "all") and its predicted, allocated and touched bytes. `name_of` is category_name()
/// for texts and category_key() for JSON.
template <typename Line>
void for_each_part(const TierPlan& planned, const TierMemory& measured,
                   std::string_view (*name_of)(Category), Line line) {
  const auto part = [&](std::string_view what, int64_t predicted, int64_t allocated,
                        int64_t touched) {
    if (predicted > 0 || allocated > 0) line(what, predicted, allocated, touched);
  };
  for (size_t c = 0; c < kCategoryCount; ++c)
    part(name_of(static_cast<Category>(c)), planned.persistent[c], measured.allocated.persistent[c],
         measured.touched.persistent[c]);
  part("temporary", planned.arenas, measured.allocated.arenas, measured.touched.arenas);
  part("all", planned.total, measured.allocated.total, measured.touched.total);
}

/// Formats the error of a prediction in percent, or in bytes if the prediction is less than 1 MiB.
std::string error_text(int64_t measured, int64_t predicted) {
  if (predicted >= 1 << 20) return percent_error_text(measured, predicted);
  return cat(measured >= predicted ? "+" : "", measured - predicted, " B");
}

void add_tier_rows(Tier tier, const MemoryReport& report, std::vector<Row>& rows) {
  const TierMemory& measured = report.tiers[static_cast<size_t>(tier)];
  for_each_part(
      report.planned.at(tier), measured, category_name,
      [&](std::string_view what, int64_t predicted, int64_t allocated, int64_t touched) {
        const int64_t peak = peak_bytes(tier, allocated, touched, report.on_gpu());
        rows.push_back({std::string(tier_name(tier)), std::string(what), std::to_string(predicted),
                        std::to_string(allocated), touched > 0 ? std::to_string(touched) : "-",
                        error_text(peak, predicted), human_bytes(peak)});
      });
}

/// Describes the peak of the arenas of a tier.
std::string peak_text(Tier tier, const TierPlan& planned) {
  if (planned.arenas == 0) return "";
  return cat(tier_name(tier), " temporary, at most: ", categories_text(planned.peak_by_category),
             "; peak at ", planned.peak_instr, "\n");
}

}  // namespace

MemoryReport report_memory(const TrainingSetup& setup, int64_t additional_bytes, int64_t measured) {
  MemoryReport report;
  report.planned = plan_memory(setup.plan());
  for (const Tier tier : kTiers)
    report.tiers[static_cast<size_t>(tier)] = {setup.memory().allocated_bytes(tier),
                                               setup.memory().touched_bytes(tier)};
  report.baseline_bytes = setup.baseline_bytes();
  report.peer_bytes = mapped_peer_bytes(setup.plan().programs(), over_shared_memory(setup));
  if (setup.memory().gpu() == nullptr)
    report.working_bytes = working_bytes(setup) + additional_bytes;
  report.measured_bytes = measured;
  if (const Gpu* gpu = setup.memory().gpu()) report.gpu = gpu->kernels().memory();
  return report;
}

std::string memory_text(const MemoryReport& report) {
  std::vector<Row> rows;
  std::string arenas;
  for (const Tier tier : kTiers) {
    add_tier_rows(tier, report, rows);
    arenas += peak_text(tier, report.planned.at(tier));
  }
  std::string process = cat("process: ", human_bytes(report.planned_in_main_memory()),
                            " planned + ", human_bytes(report.baseline_bytes), " before training");
  if (report.peer_bytes > 0)
    process +=
        cat(" + ", human_bytes(report.peer_bytes), " of other ranks' memory mapped at one time");
  if (report.working_bytes > 0)
    process += cat(" + ", human_bytes(report.working_bytes), " of working memory at most");
  process += cat(" = ", human_bytes(report.predicted_bytes()), " predicted, ",
                 human_bytes(report.measured_bytes), " measured at most, error ",
                 percent_error_text(report.measured_bytes, report.predicted_bytes()));
  if (report.on_gpu())
    arenas += cat("GPU: ", human_bytes(report.gpu.total_bytes - report.gpu.free_bytes), " of ",
                  human_bytes(report.gpu.total_bytes), " in use at the end, CUDA's own included\n");
  return "\nmemory of rank 0\n" +
         format_table(
             {"tier", "category", "predicted", "allocated", "measured", "error", "rounded"}, rows) +
         arenas + process;
}

std::map<std::string, std::map<std::string, int64_t>> memory_record(const MemoryReport& report) {
  std::map<std::string, std::map<std::string, int64_t>> record;
  for (const Tier tier : kTiers)
    for_each_part(
        report.planned.at(tier), report.tiers[static_cast<size_t>(tier)], category_key,
        [&](std::string_view what, int64_t predicted, int64_t allocated, int64_t touched) {
          const std::string name = cat(tier_name(tier), "_", what == "all" ? "total" : what);
          record["predicted"][name] = predicted;
          record["allocated"][name] = allocated;
          record["touched"][name] = touched;
        });
  record["process"] = {{"fixed", report.baseline_bytes},
                       {"peers", report.peer_bytes},
                       {"working", report.working_bytes},
                       {"predicted", report.predicted_bytes()},
                       {"measured", report.measured_bytes}};
  if (report.on_gpu())
    record["gpu"] = {{"used", report.gpu.total_bytes - report.gpu.free_bytes},
                     {"total", report.gpu.total_bytes}};
  return record;
}

std::vector<MemoryMetric> memory_metrics(const RankMemory& memory) {
  std::vector<MemoryMetric> figures;
  for (const Tier tier : kTiers) {
    const TierMemory measured{memory.allocated_bytes(tier), memory.touched_bytes(tier)};
    for_each_part(
        {}, measured, category_key,
        [&](std::string_view what, int64_t, int64_t allocated, int64_t touched) {
          if (what == "all") return;
          const std::string name =
              cat(tier == Tier::kDevice ? "" : cat(tier_name(tier), "_"), what);
          figures.push_back({name, peak_bytes(tier, allocated, touched, memory.gpu() != nullptr)});
        });
  }
  return figures;
}

void PeakMemory::begin_step() {
  resident_before_ = read_process_memory().peak_resident_bytes;
}

void PeakMemory::end_step() {
  const ProcessMemory now = read_process_memory();
  peak_bytes_ = std::max(peak_bytes_, now.held_bytes());
  if (now.peak_resident_bytes > resident_before_)
    peak_bytes_ = std::max(peak_bytes_, now.peak_resident_bytes - now.file_backed_bytes);
}

}  // namespace ftrun
