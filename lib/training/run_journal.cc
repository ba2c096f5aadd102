#include "training/run_journal.h"

#include <iostream>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine_info.h"
#include "base/utf8.h"
#include "engine/executor.h"
#include "training/describe_step.h"

namespace ftrun {
namespace {

/// Returns the line "continues with 1 data-parallel rank of 2 since rank 1 failed twice without a
/// new checkpoint: ...".
std::string fewer_ranks_text(const TrainRequest& request) {
  const ParallelConfig& mesh = request.config.parallel;
  const int64_t ranks_per_data_place = request.launch.world_size / mesh.data;
  const int64_t removed_places = std::ssize(request.ranks.removed_ranks) / ranks_per_data_place;
  return cat("continues with ", count_text(mesh.data, "data-parallel rank"), " of ",
             mesh.data + removed_places, " since ", request.ranks.removed_reason);
}

}  // namespace

void RunJournal::open_folder() {
  session_.run_on_all_ranks("taking the run folder", [&] {
    if (session_.is_first()) folder_writer_ = std::make_unique<RunFolderWriter>(request_);
  });
}

void RunJournal::open(const std::function<RunManifest()>& describe, int64_t steps_done,
                      int64_t total_steps) {
  const Config& config = request_.config;
  const bool prefixed =
      session_.world_size() > 1 && request_.launch.kind != LaunchKind::kSupervised;
  session_.run_on_all_ranks("writing the run folder", [&] {
    if (folder_writer_)
      folder_writer_->start(describe(), steps_done == 0 ? 0 : steps_done + 1, total_steps);
  });
  // The logs are opened after run.json is written: a later start would refuse a folder that holds
  // logs and no run.
  session_.run_on_all_ranks("opening the logs", [&] {
    open_log_({.level = config.log_level,
               .prefix = prefixed ? cat("rank ", session_.rank()) : "",
               .file = RunPaths(config.output_dir).log(session_.rank())});
  });
  if (!request_.ranks.removed_ranks.empty()) warn(fewer_ranks_text(request_));
  log_debug(cat("rank ", session_.rank(), " of ", session_.world_size(), ", ftrun ",
                request_.build.version, ", from step ", steps_done + 1, " to ", total_steps));
}

void RunJournal::print(const std::string& line) {
  if (folder_writer_) folder_writer_->print(line);
}

void RunJournal::warn(const std::string& line) {
  if (folder_writer_) folder_writer_->warn(line);
}

void RunJournal::update_manifest(const std::function<void(RunManifest&)>& change) {
  if (folder_writer_) folder_writer_->update_manifest(change);
}

void RunJournal::update_manifest_collectively(const std::string& what,
                                              const std::function<void(RunManifest&)>& change) {
  session_.run_on_all_ranks(what, [&] { update_manifest(change); });
}

void RunJournal::record_step(const StepMetrics& metrics) {
  if (folder_writer_) folder_writer_->record_step(metrics);
}

void RunJournal::record_trace(const TracedStep& step) {
  if (!folder_writer_) return;
  try {
    folder_writer_->record_trace(step);
  } catch (const std::exception& error) {
    warn(cat("step ", step.step, " is not traced: ", error.what()));
  }
}

void RunJournal::record_texts(int64_t step, const std::vector<TextSample>& samples) {
  if (folder_writer_) folder_writer_->record_texts(step, samples);
}

void RunJournal::record_first_batch() {
  if (std::exchange(has_recorded_first_batch_, true)) return;
  const auto milliseconds = static_cast<int64_t>(read_process_times().age_seconds * 1e3);
  update_manifest(
      [&](RunManifest& manifest) { manifest.counters["ready_milliseconds"] = milliseconds; });
}

void RunJournal::print_step_details(const TrainingProgress& progress, const StepRun& step,
                                    const StepMetrics& metrics) {
  const Config& config = request_.config;
  log_debug(plain_step_text(metrics));
  if (config.steps_per_print > 0 && progress.step % config.steps_per_print == 0)
    print(deepspeed_step_text(progress.step, progress.skipped.total(), step, config.optimizer));
  if (!config.wall_clock_breakdown || executor_ == nullptr) return;
  print(breakdown_text(executor_->seconds_by_kind()));
  if (const auto& times = executor_->device_times(); times && times->copy_seconds > 0)
    print(overlap_text(*times));
}

void RunJournal::finish(int exit_code, const std::string& reason) {
  if (!folder_writer_) return;
  const std::string table = folder_writer_->finish(exit_code, reason);
  std::cout << '\n' << terminal_text(table) << std::flush;
}

void RunJournal::fail(int exit_code, const std::string& reason) noexcept {
  if (folder_writer_) folder_writer_->fail(exit_code, reason);
}

}  // namespace ftrun
