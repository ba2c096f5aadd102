#include "exec/checkpointer.h"

#include <exception>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"
#include "exec/export_options.h"
#include "exec/results.h"
#include "exec/resume_policy.h"
#include "report/environment.h"

namespace ftrun {

Checkpointer::Checkpointer(const TrainRequest& request, Session& session, TrainingSetup& setup,
                           RunJournal& journal)
    : request_(request),
      config_(request.config),
      session_(session),
      setup_(setup),
      journal_(journal) {}

/// Rank 0 alone looks: it also removes what a killed run left half written.
bool Checkpointer::finds_checkpoint(const std::function<RunManifest()>& describe) {
  const std::string root = RunPaths(config_.output_dir).checkpoints();
  return session_.first_decides("resuming", [&] {
    clean_checkpoints(posix_files(), root);
    if (config_.model_export.enabled) recover_export(posix_files(), export_folder(config_));
    if (!request_.resume.resume || (!request_.resume.step && list_checkpoints(root).empty()))
      return false;
    journal_.recorder()->admit(describe());
    return true;
  });
}

std::optional<ResumedRun> Checkpointer::load(const std::function<RunManifest()>& describe) {
  if (finds_checkpoint(describe)) {
    const std::string root = RunPaths(config_.output_dir).checkpoints();
    return resume(choose_checkpoint(root, request_.resume.step, session_.checkpoint_group()),
                  describe);
  }
  if (Recorder* recorder = journal_.recorder()) recorder->note_new_start();
  session_.together("reading the weights", [&] { setup_.state().load(setup_.folder()); });
  return std::nullopt;
}

ResumedRun Checkpointer::resume(const std::string& folder,
                                const std::function<RunManifest()>& describe) {
  ResumedRun resumed{folder, {}};
  session_.together("reading the checkpoint", [&] {
    Checkpoint checkpoint(folder);
    resumed.meta = checkpoint.meta();
    if (Recorder* recorder = journal_.recorder()) recorder->admit(folder, resumed.meta, describe());
    setup_.state().load(checkpoint);
  });
  saved_step_ = resumed.meta.step;
  journal_.say(cat("resumed from ", folder));
  return resumed;
}

bool Checkpointer::is_due(int64_t step) const {
  return config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0;
}

CheckpointMeta Checkpointer::meta_of(const TrainingProgress& progress,
                                     const std::string& data_fingerprint) const {
  CheckpointMeta meta;
  meta.ftrun_version = request_.build.version;
  meta.step = progress.step;
  meta.skipped_steps = progress.skipped.total();
  meta.samples = progress.step * config_.train_batch_size;
  meta.tokens = progress.tokens;
  meta.seed = static_cast<uint64_t>(config_.train.seed);
  meta.scheduler["last_batch_iteration"] = static_cast<double>(progress.updates() - 1);
  meta.data_fingerprint = data_fingerprint;
  meta.model_fingerprint = setup_.folder().fingerprint();
  meta.config_hash = hex64(xxh3(request_.config_json.data(), request_.config_json.size()));
  meta.extra[kConfigRecord] = without_secrets(request_.config_json);
  meta.loss_scaler = progress.skipped.scaler_state();
  const StateOptions& state = setup_.plan().options.state;
  meta.topology = {{"world_size", session_.world()},
                   {"data", data_ranks(state)},
                   {"data_replicate", state.replicas},
                   {"tensor", state.tensor.count},
                   {"zero_stage", config_.zero.stage}};
  if (state.pipeline.stages() > 1) meta.topology["pipeline"] = state.pipeline.stages();
  return meta;
}

void Checkpointer::save(const TrainingProgress& progress, const std::string& data_fingerprint) {
  if (has_saved(progress.step)) return;
  const SaveOptions options{RunPaths(config_.output_dir).checkpoints(),
                            config_.checkpoint.keep_last};
  const SaveResult result =
      save_checkpoint(posix_files(), options, meta_of(progress, data_fingerprint),
                      setup_.state().slices(), session_.checkpoint_group());
  saved_step_ = progress.step;
  journal_.say(cat("saved ", result.folder, " (", human_bytes(result.bytes),
                   result.read_from_disk
                       ? ""
                       : ", verified in memory: this file system reads nothing back from a disk",
                   ")"));
}

/// Rank 0 writes and the others help, which also learn of its failure. What fails where they work
/// together ends a rank's process at once, so that no other waits for it.
void Checkpointer::export_model(StopAgreement& stop) {
  const ExportOutcome outcome =
      export_weights(config_, setup_, session_.is_first(), [&stop] { return stop.vote(); });
  session_.together("exporting the model", [&] {
    if (outcome.failure) std::rethrow_exception(outcome.failure);
    if (!outcome.stopped) journal_.say(cat("exported ", export_folder(config_)));
  });
}

}  // namespace ftrun
