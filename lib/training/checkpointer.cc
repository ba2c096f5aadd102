#include "training/checkpointer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/log.h"
#include "base/text.h"
#include "base/wait_notice.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"
#include "config/serving_limits.h"
#include "inputs/checkpoint_fields.h"
#include "inputs/export_options.h"
#include "inputs/resume_policy.h"
#include "report/environment.h"

namespace ftrun {

Checkpointer::Checkpointer(const TrainRequest& request, Session& session,
                           CheckpointerDependencies dependencies)
    : request_(request),
      config_(request.config),
      session_(session),
      dependencies_(std::move(dependencies)),
      best_record_(RunPaths(config_.output_dir).checkpoints(), session_, dependencies_.journal,
                   dependencies_.files),
      save_clock_({.steps = config_.checkpoint.every, .minutes = config_.checkpoint.every_minutes},
                  RankFlag::kSaveDue, session_.is_first(), dependencies_.clock) {
  if (saves_in_background(config_)) background_group_ = session.open_background_group();
}

/// Removes incomplete files that a killed run left.
void Checkpointer::prepare_folder() {
  clean_checkpoints(dependencies_.files, RunPaths(config_.output_dir).checkpoints());
  if (config_.model_export.enabled) recover_export(dependencies_.files, export_folder(config_));
}

/// Decides on rank 0 whether this run resumes from a checkpoint. Throws an Error if the config or
/// the inputs do not allow that.
bool Checkpointer::decide_to_resume(const std::function<RunManifest()>& describe) {
  return session_.broadcast_decision("resuming", [&] {
    prepare_folder();
    if (!request_.resume.is_requested) return false;
    const std::string root = RunPaths(config_.output_dir).checkpoints();
    if (!request_.resume.step && list_checkpoints(root).empty()) {
      dependencies_.folder_writer->refuse_if_checkpoints_are_gone();
      return false;
    }
    dependencies_.folder_writer->check_resumed_run(describe());
    return true;
  });
}

std::optional<ResumedRun> Checkpointer::load(const std::function<RunManifest()>& describe) {
  // Only rank 0 records the fingerprint of the base weights.
  if (session_.is_first()) base_fingerprint_ = dependencies_.model.base_fingerprint();
  model_fingerprint_ = dependencies_.model.fingerprint();
  if (decide_to_resume(describe)) return resume(describe);
  if (dependencies_.folder_writer != nullptr) dependencies_.folder_writer->record_new_start();
  session_.run_on_all_ranks("reading the weights", [&] {
    const std::string& adapter = config_.adapter.path;
    std::optional<AdapterFolder> begun;
    if (!adapter.empty()) begun.emplace(find_adapter_folder(adapter).folder);
    dependencies_.model.load_initial(begun ? &*begun : nullptr);
  });
  return std::nullopt;
}

void Checkpointer::load_state(Checkpoint& checkpoint) {
  for (const StateDtypeChange& conversion : dependencies_.model.load(checkpoint))
    if (session_.is_first()) log_notice(conversion_notice(checkpoint.folder(), conversion));
}

ResumedRun Checkpointer::resume(const std::function<RunManifest()>& describe) {
  const double start = dependencies_.clock();
  const std::string folder = choose_checkpoint(RunPaths(config_.output_dir).checkpoints(),
                                               request_.resume.step, session_.checkpoint_group());
  ResumedRun resumed{folder, {}};
  session_.run_on_all_ranks("reading the checkpoint", [&] {
    Checkpoint checkpoint(folder);
    resumed.meta = checkpoint.meta();
    dependencies_.model.check_same_base(resumed.meta, folder);
    if (dependencies_.folder_writer != nullptr)
      dependencies_.folder_writer->check_resumed_checkpoint(folder, resumed.meta, describe());
    load_state(checkpoint);
  });
  saved_step_ = resumed.meta.step;
  dependencies_.journal.print(cat("resumed from ", folder, " (read in ",
                                  human_seconds(dependencies_.clock() - start), ")"));
  return resumed;
}

void Checkpointer::add_flags(RankFlags& flags) const {
  if (save_in_progress_ == nullptr || save_in_progress_->has_ended())
    flags.add(RankFlag::kSaveEnded);
  save_clock_.add_flags(flags);
}

void Checkpointer::read_flags(const RankFlags& flags) {
  all_saves_ended_ = flags.count_of(RankFlag::kSaveEnded) == session_.world_size();
  save_clock_.read_flags(flags);
}

/// Returns whether a save that is due is skipped because the previous save is still being written.
bool Checkpointer::skips_save() const {
  return save_in_progress_ && !all_saves_ended_ &&
         config_.checkpoint.if_busy == BusySavePolicy::kSkip;
}

bool Checkpointer::will_save(const TrainingProgress& progress) const {
  return progress.evaluations.is_best(progress.step) ||
         (save_clock_.is_due(progress.step) && !skips_save());
}

SaveOptions Checkpointer::save_options(const TrainingProgress& progress) const {
  return {.root = RunPaths(config_.output_dir).checkpoints(),
          .keep_last = config_.checkpoint.keep_last,
          .buffers = dependencies_.model.save_buffers(),
          .best = BestCheckpointRecord::make_if_best(progress)};
}

CheckpointMeta Checkpointer::make_meta(const TrainingProgress& progress,
                                       const std::string& data_fingerprint) const {
  CheckpointMeta meta;
  meta.ftrun_version = request_.build.version;
  progress.add_to(meta);
  meta.samples = sequences_in_steps(progress.step, config_);
  meta.seed = static_cast<uint64_t>(config_.train.seed);
  meta.data_fingerprint = data_fingerprint;
  meta.model_fingerprint = model_fingerprint_;
  meta.config_hash = hex64(xxh3(request_.config_json.data(), request_.config_json.size()));
  meta.extra[kConfigRecord] = without_secrets(request_.config_json);
  if (!base_fingerprint_.empty()) meta.extra[kBaseRecord] = base_fingerprint_;
  meta.topology = dependencies_.model.topology();
  meta.topology["world_size"] = session_.world_size();
  meta.topology["zero_stage"] = config_.zero.stage;
  return meta;
}

bool Checkpointer::save_if_due(TrainingProgress& progress, const std::string& data_fingerprint) {
  if (background_group_ && !snapshot_populator_)
    snapshot_populator_.emplace([this] { dependencies_.model.populate_snapshot(); });
  if (save_in_progress_ && all_saves_ended_) finish_background_save(progress);
  const bool best = progress.evaluations.is_best(progress.step);
  if (!best && !save_clock_.is_due(progress.step)) return false;
  save_clock_.mark_begun();
  if (!background_group_) {
    save(progress, data_fingerprint);
    return true;
  }
  const bool busy = save_in_progress_ != nullptr;
  if (!best && skips_save()) {
    ++skipped_count_;
    save_clock_.restart(dependencies_.clock());  // so that the next step does not try again at once
    dependencies_.journal.print(cat("no checkpoint after step ", progress.step,
                                    ": the one after step ", save_in_progress_->step(),
                                    " is still being written (checkpoint.if_busy: skip)"));
    return false;
  }
  save_in_background(progress, data_fingerprint);
  return busy;
}

/// Starts a save in the background. If a save is still being written, waits for it first.
void Checkpointer::save_in_background(TrainingProgress& progress,
                                         const std::string& data_fingerprint) {
  session_.show_phase(cat("copying the checkpoint of step ", progress.step));
  const double start = dependencies_.clock();
  finish_background_save(progress);
  if (snapshot_populator_ && snapshot_populator_->joinable()) snapshot_populator_->join();
  save_clock_.restart(start);
  save_in_progress_ = std::make_unique<BackgroundSave>(
      progress.step,
      [options = save_options(progress), meta = make_meta(progress, data_fingerprint),
       slices = dependencies_.model.take_snapshot(), group = *background_group_,
       &files = dependencies_.files] {
        return save_checkpoint(files, options, meta, slices, group);
      });
  all_saves_ended_ = false;
  best_record_.mark_recorded_by_save(progress);
  current_pause_seconds_ = dependencies_.clock() - start;
  total_pause_seconds_ += current_pause_seconds_;
}

/// Waits for a save in the background and logs its outcome. A failed save is not fatal: earlier
/// checkpoints still exist, and the next save will be tried. Its state can no longer become the
/// best, unless it is that of the current step, which can be saved again.
void Checkpointer::finish_background_save(TrainingProgress& progress) {
  if (!save_in_progress_) return;
  const std::unique_ptr<BackgroundSave> ended_save = std::move(save_in_progress_);
  const BackgroundSave::Outcome& outcome = ended_save->finish();
  dependencies_.model.release_snapshot();
  if (outcome.failure.empty())
    return record_saved(ended_save->step(), outcome.result, outcome.seconds,
                        cat(" while training went on, which paused for ",
                            std::llround(1e3 * current_pause_seconds_), " ms"));
  ++failed_count_;
  if (ended_save->step() != progress.step) progress.evaluations.forget_best(ended_save->step());
  dependencies_.journal.warn(cat(
      outcome.failure, "; training continues, and the next checkpoint is written when it is due"));
  dependencies_.journal.update_manifest([&](RunManifest& manifest) { add_counters(manifest); });
}

void Checkpointer::record_saved(int64_t step, const SaveResult& result, double seconds,
                                const std::string& save_mode_text) {
  ++saved_count_;
  saved_step_ = step;
  longest_save_seconds_ = std::max(longest_save_seconds_, seconds);
  dependencies_.journal.print(cat(
      "saved ", result.folder, " (", human_bytes(result.bytes), ", in ", human_seconds(seconds),
      save_mode_text, "; ", human_seconds(result.read_back_seconds), " of it to verify it",
      result.read_from_disk ? "" : " in memory: this file system reads nothing back from a disk",
      ")"));
}

void Checkpointer::save(TrainingProgress& progress, const std::string& data_fingerprint) {
  session_.show_phase(cat("writing the checkpoint of step ", progress.step));
  const double start = dependencies_.clock();
  finish_background_save(progress);
  if (has_saved(progress.step)) return best_record_.record(progress);
  save_clock_.restart(start);
  const SaveResult result = save_checkpoint(
      dependencies_.files, save_options(progress), make_meta(progress, data_fingerprint),
      dependencies_.model.slices(), session_.checkpoint_group());
  record_saved(progress.step, result, dependencies_.clock() - start, "");
  best_record_.mark_recorded_by_save(progress);
  total_pause_seconds_ += dependencies_.clock() - start;
}

void Checkpointer::load_best(const TrainingProgress& progress) {
  const auto& best = progress.evaluations.best();
  if (best->step == progress.step) return;
  const std::string folder = choose_checkpoint(RunPaths(config_.output_dir).checkpoints(),
                                               best->step, session_.checkpoint_group());
  session_.run_on_all_ranks("reading the best checkpoint", [&] {
    Checkpoint checkpoint(folder);
    load_state(checkpoint);
  });
  exported_step_text_ = cat(" (of step ", best->step, ", the best by ",
                            progress.evaluations.metric(), ": ", number_text(best->value), ")");
}

void Checkpointer::add_counters(RunManifest& manifest) const {
  manifest.counters["checkpoints_saved"] = saved_count_;
  manifest.counters["checkpoints_failed"] = failed_count_;
  manifest.counters["checkpoints_skipped"] = skipped_count_;
  manifest.counters["checkpoint_wait_milliseconds"] = std::llround(1e3 * total_pause_seconds_);
}

/// Waits for the background save of a run that fails with `error`; returns whether it has ended.
/// The error is shown only after this wait, so a notice of a long wait contains it, and a disk that
/// does not answer must not hide it.
bool Checkpointer::await_save_of_failed_run(const Error& error) {
  constexpr std::chrono::milliseconds kSlice{1000};
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::milliseconds limit =
      std::max(session_.timeout(), dependencies_.patience_after_failure);
  WaitNotice notice;
  while (!save_in_progress_->ends_within(std::min(kSlice, limit))) {
    if (std::chrono::steady_clock::now() - start >= limit) {
      log_warning(cat("the checkpoint after step ", save_in_progress_->step(),
                      " was not written within ",
                      human_seconds(std::chrono::duration<double>(limit).count()),
                      ", and is given up: its disk does not answer, or is slow"));
      return false;
    }
    notice.poll([&](const std::string& waited) {
      return cat("the run has failed (", error.message(), ") and has waited ", waited,
                 " for the checkpoint after step ", save_in_progress_->step());
    });
  }
  return true;
}

/// Ends the background save of a run that fails. If a peer is lost, the save is abandoned: no
/// checkpoint can be completed, and waiting for a stopped peer would take another timeout.
void Checkpointer::end_background_save(const Error& error) noexcept {
  if (!save_in_progress_) return;
  if (error.code() != ExitCode::kPeerLost && await_save_of_failed_run(error)) {
    const BackgroundSave::Outcome& outcome = save_in_progress_->finish();
    if (outcome.failure.empty() && session_.is_first())
      log_notice(cat("saved ", outcome.result.folder));
    return;
  }
  // The thread may still use the object, so the object is never freed.
  [[maybe_unused]] static BackgroundSave* abandoned = nullptr;
  abandoned = save_in_progress_.release();
}

/// Exports the weights. Rank 0 writes, the other ranks send their parts, and all ranks throw rank
/// 0's failure. If a rank fails in the joint work, it aborts the groups, so that no other rank
/// waits for it.
void Checkpointer::export_model(StopAgreement& stop) {
  session_.show_phase("the export");
  const ExportResult result = dependencies_.model.export_weights(
      session_.is_first(), [&stop] { return stop.decide_outside_step(); });
  session_.run_on_all_ranks("exporting the model", [&] {
    if (result.failure) std::rethrow_exception(result.failure);
    if (result.stopped) return;
    dependencies_.journal.print(cat("exported ", export_folder(config_), exported_step_text_));
    for (const std::string& limits : serving_limits(config_.adapter, config_.quantization))
      dependencies_.journal.print(limits);
    if (!result.unchanged_warning.empty()) dependencies_.journal.warn(result.unchanged_warning);
  });
}

}  // namespace ftrun
