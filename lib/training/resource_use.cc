#include "training/resource_use.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "axes/tensor/tensor_config.h"
#include "base/error.h"
#include "base/machine_info.h"
#include "base/shm_sizes.h"
#include "data/micro_batch.h"
#include "training/export_weights.h"
#include "training/text_generation.h"

namespace ftrun {

namespace {

/// Returns an upper bound on the bytes of all batches: those of the step, a copy of them, those of
/// the steps that the loader prepares, and those of an evaluation. Positions include the padding of
/// rows.
int64_t batch_bytes(const Config& config) {
  const int64_t sequences =
      config.train_micro_batch_size_per_gpu * config.gradient_accumulation_steps;
  const int64_t positions = config.data.sequence_length + sequence_padding(config);
  return (config.data.prefetch + 3) * sequences * positions * kBatchLists *
         static_cast<int64_t>(sizeof(int32_t));
}

/// Returns an upper bound on the bytes that the thread that writes checkpoints during steps needs,
/// together with its group.
int64_t background_saver_bytes(const Config& config, const TrainingSetup& setup) {
  constexpr int64_t kThread = 512 << 10, kOfRank = 2 * kShmStagedBytes;
  return saves_in_background(config) ? kThread + kOfRank * setup.communicators().host_world->size()
                                     : 0;
}

}  // namespace

double ResourceUse::total_disk_wait_seconds() const {
  const SwapFile* swap = setup_.memory().swap();
  return swap == nullptr ? 0 : swap->counters().wait_seconds;
}

void ResourceUse::begin_step() {
  disk_wait_seconds_ = -total_disk_wait_seconds();
  peak_.begin_step();
  traffic_.begin_step();
}

void ResourceUse::end_step(bool finite) {
  traffic_.end_step(finite);
  pipeline_.end_step();
  peak_.end_step();
  disk_wait_seconds_ += total_disk_wait_seconds();
}

/// Sums the bytes that this rank has sent over all its groups.
int64_t ResourceUse::bytes_sent() const {
  int64_t bytes = 0;
  for (const Communicator* group : setup_.communicators().distinct_communicators())
    bytes += group->stats().total().bytes_sent;
  return bytes;
}

void ResourceUse::add_memory_and_traffic(StepMetrics& metrics) const {
  for (const MemoryMetric& figure : memory_metrics(setup_.memory()))
    metrics.memory.push_back({figure.name, figure.bytes});
  metrics.counters.push_back({"bytes_sent", bytes_sent()});
  const TrafficSums& traffic = traffic_.traffic_sums();
  if (traffic.measured_sent_bytes)
    metrics.counters.push_back({"bytes_transported", *traffic.measured_sent_bytes});
  if (setup_.memory().swap() == nullptr) return;
  metrics.counters.push_back({"disk_bytes_read", traffic.measured_disk.bytes_read});
  metrics.counters.push_back({"disk_bytes_written", traffic.measured_disk.bytes_written});
}

void ResourceUse::sum_over_ranks(Session& session) {
  sum_memory(session);
  sum_traffic(session);
  pipeline_.sum_over_ranks(session);
}

/// Returns the text " name bytes name bytes ..." on the lowest rank of each pipeline stage; "" on
/// other ranks, and without a pipeline.
std::string ResourceUse::stage_memory_text() const {
  const StateOptions& state = setup_.plan().options.state;
  if (state.pipeline.stages() == 1 || !is_first_of_stage(state)) return "";
  std::string text = cat(" process ", memory_->measured_bytes);
  for (const MemoryMetric& figure : memory_metrics(setup_.memory()))
    text += cat(" ", figure.name, " ", figure.bytes);
  return text;
}

void ResourceUse::sum_memory(Session& session) {
  const ProcessMemory process_memory = read_process_memory();
  const int64_t bytes_around_steps = batch_bytes(config_) +
                                     background_saver_bytes(config_, setup_) +
                                     export_working_bytes(config_, setup_) +
                                     (session.is_first() ? detokenizer_bytes(config_, setup_) : 0);
  memory_ = report_memory(setup_, bytes_around_steps,
                          std::max(peak_.peak_bytes(), process_memory.held_bytes()));
  for (const std::string& text : session.all_gather_text(
           "memory", cat(process_memory.peak_resident_bytes, " ", process_memory.held_bytes(), " ",
                         process_memory.file_backed_bytes, stage_memory_text()))) {
    std::istringstream figures(text);
    for (int64_t* const peak :
         {&peak_resident_bytes_, &peak_held_bytes_, &peak_file_backed_bytes_}) {
      int64_t bytes = 0;
      figures >> bytes;
      *peak = std::max(*peak, bytes);
    }
    // Ranks are numbered stage by stage, so the texts of the stages arrive in order.
    std::map<std::string, int64_t> stage;
    std::string name;
    for (int64_t bytes = 0; figures >> name >> bytes;) stage[name] = bytes;
    if (!stage.empty()) stage_memory_.push_back(std::move(stage));
  }
}

void ResourceUse::sum_traffic(Session& session) {
  if (traffic_.traffic_sums().steps == 0) return;
  for (const std::string& text :
       session.all_gather_text("traffic", encode_traffic(traffic_.traffic_sums()))) {
    const TrafficSums sums = decode_traffic(text);
    if (traffic_of_all_ranks_)
      traffic_of_all_ranks_->add(sums);
    else
      traffic_of_all_ranks_ = sums;
  }
}

void ResourceUse::write_totals(RunManifest& manifest) const {
  manifest.counters["peak_resident_bytes"] = peak_resident_bytes_;
  manifest.counters["anonymous_and_shared_bytes"] = peak_held_bytes_;
  manifest.counters["file_backed_bytes"] = peak_file_backed_bytes_;
  manifest.memory = memory_record(*memory_);
  for (size_t stage = 0; stage < stage_memory_.size(); ++stage)
    manifest.memory[cat("stage ", stage)] = stage_memory_[stage];
  manifest.pipeline = pipeline_.manifest_values();
  if (traffic_of_all_ranks_) manifest.traffic = traffic_record(*traffic_of_all_ranks_);
}

std::vector<std::string> ResourceUse::summary_lines(int ranks) const {
  std::vector<std::string> lines{memory_text(*memory_)};
  const std::string traffic_text =
      measured_traffic_text(traffic_of_all_ranks_.value_or(TrafficSums()), ranks);
  if (!traffic_text.empty()) lines.push_back(traffic_text);
  if (const std::string idle_text = pipeline_.text(); !idle_text.empty())
    lines.push_back(idle_text);
  return lines;
}

}  // namespace ftrun
