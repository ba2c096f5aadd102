#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/file.h"
#include "checkpoint/checkpoint_group.h"
#include "checkpoint/checkpoint_manifest.h"
#include "training/background_save.h"
#include "training/best_checkpoint_record.h"
#include "training/checkpointed_state.h"
#include "training/due_clock.h"
#include "training/loop_dependencies.h"
#include "training/run_folder_writer.h"
#include "training/session.h"
#include "training/training_progress.h"

namespace ftrun {

/// ResumedRun is the checkpoint from which a resumed run starts.
struct ResumedRun {
  std::string folder;
  CheckpointMeta meta;
};

/// CheckpointerDependencies holds the objects that a Checkpointer uses. They must outlive it.
struct CheckpointerDependencies {
  CheckpointedState& model;
  Journal& journal;
  /// The writer of rank 0's run folder, which checks whether a run may be resumed; null on other
  /// ranks.
  RunFolderWriter* folder_writer = nullptr;
  FileSystem& files;
  /// Returns the seconds since some fixed moment; they never decrease.
  std::function<double()> clock;
  /// The minimum time for which a failing run waits for its background save: a slow disk needs long
  /// for a large checkpoint, whatever the time limit of collectives is.
  std::chrono::milliseconds patience_after_failure = std::chrono::minutes(30);
};

/// Checkpointer loads the model's state when a run begins, saves it during training, and exports
/// the weights at the end. Every function that saves, loads or exports is collective.
class Checkpointer : public Saver {
 public:
  /// Keeps references to the request and the session.
  Checkpointer(const TrainRequest& request, Session& session,
               CheckpointerDependencies dependencies);

  /// Loads the model's weights or, if --resume finds a checkpoint that this run may continue from,
  /// the state of the checkpoint. `describe` returns this run's manifest; it is called on rank 0.
  std::optional<ResumedRun> load(const std::function<RunManifest()>& describe);

  void add_flags(RankFlags& flags) const override;
  void read_flags(const RankFlags& flags) override;
  bool will_save(const TrainingProgress& progress) const override;
  bool save_if_due(TrainingProgress& progress, const std::string& data_fingerprint) override;
  void save(TrainingProgress& progress, const std::string& data_fingerprint) override;
  double longest_save_seconds() const override { return longest_save_seconds_; }
  bool has_saved(int64_t step) const override { return saved_step_ == step; }

  /// Restores the record of the best checkpoint in a resumed run, after `progress` was restored
  /// from the checkpoint. Forgets a best checkpoint that no longer exists, and writes the best one
  /// of `progress` to the record on disk. If there is none, removes a record on disk that names a
  /// later step, because this run may get another state at that step.
  void restore_best(TrainingProgress& progress) { best_record_.restore(progress); }
  /// Loads the weights of the best checkpoint, which must exist. Afterwards the state in memory no
  /// longer matches `progress` and may only be read.
  void load_best(const TrainingProgress& progress);

  /// Adds counters to the manifest: how many checkpoints this process saved, failed to save, and
  /// skipped, and how long training paused for them.
  void add_counters(RunManifest& manifest) const;

  /// Ends the background save of a run that fails with `error`: waits for it, at most for
  /// Session::timeout() or CheckpointerDependencies::patience_after_failure, whichever is longer,
  /// if the other ranks can finish it too, else abandons it.
  void end_background_save(const Error& error) noexcept;

  /// Writes the weights in the format of Hugging Face, unless the ranks agree to stop during the
  /// export.
  void export_model(StopAgreement& stop);

 private:
  bool decide_to_resume(const std::function<RunManifest()>& describe);
  void prepare_folder();
  void load_state(Checkpoint& checkpoint);
  ResumedRun resume(const std::function<RunManifest()>& describe);
  CheckpointMeta make_meta(const TrainingProgress& progress,
                           const std::string& data_fingerprint) const;
  bool skips_save() const;
  SaveOptions save_options(const TrainingProgress& progress) const;
  void save_in_background(TrainingProgress& progress, const std::string& data_fingerprint);
  void finish_background_save(TrainingProgress& progress);
  bool await_save_of_failed_run(const Error& error);
  void record_saved(int64_t step, const SaveResult& result, double seconds,
                    const std::string& save_mode_text);

  const TrainRequest& request_;
  const Config& config_;
  Session& session_;
  const CheckpointerDependencies dependencies_;
  BestCheckpointRecord best_record_;
  std::string base_fingerprint_;
  /// The fingerprint of the model folder, taken when training begins, because the files may be gone
  /// when a checkpoint records it.
  std::string model_fingerprint_;
  int64_t saved_step_ = -1;
  /// A text that names the step of the exported weights, if it is not the last step.
  std::string exported_step_text_;
  std::unique_ptr<BackgroundSave> save_in_progress_;
  /// Says whether the saves of all ranks have ended, according to the last step's flags.
  bool all_saves_ended_ = false;
  /// Counts the minutes since the last save began, or was skipped.
  DueClock save_clock_;
  /// The checkpoint group of the background threads of all ranks; absent if nothing is saved in the
  /// background.
  std::optional<CheckpointGroup> background_group_;
  int64_t saved_count_ = 0;
  int64_t failed_count_ = 0;
  int64_t skipped_count_ = 0;
  double longest_save_seconds_ = 0;
  double total_pause_seconds_ = 0;
  /// Seconds that training paused for the save in progress.
  double current_pause_seconds_ = 0;
  /// A thread that touches the memory of the snapshot once, so that the first copy does not wait
  /// for page faults.
  std::optional<std::jthread> snapshot_populator_;
};

}  // namespace ftrun
