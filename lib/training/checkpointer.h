#pragma once

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
#include "training/loop_parts.h"
#include "training/recorder.h"
#include "training/saved_model.h"
#include "training/session.h"
#include "training/training_progress.h"

namespace ftrun {

/// ResumedRun is the checkpoint that a resumed run starts from.
struct ResumedRun {
  std::string folder;
  CheckpointMeta meta;
};

/// CheckpointerParts are the objects that a Checkpointer calls besides other ranks. References are
/// borrowed.
struct CheckpointerParts {
  SavedModel& model;
  Journal& journal;
  /// The recorder of rank 0, which checks whether a run may be resumed; null on other ranks.
  Recorder* recorder = nullptr;
  FileSystem& files;
  /// Returns the seconds since some fixed moment; they never decrease.
  std::function<double()> clock;
};

/// Checkpointer loads the model's state when a run begins, saves it during training, and exports
/// the weights at the end. Every function that saves, loads or exports is collective.
class Checkpointer : public Saver {
 public:
  /// Borrows the request and the session.
  Checkpointer(const TrainRequest& request, Session& session, CheckpointerParts parts);

  /// Reads the model's weights or, if --resume finds a checkpoint of a run that this one may
  /// continue, that checkpoint's state. `describe` returns this run's manifest and is called on
  /// rank 0.
  std::optional<ResumedRun> load(const std::function<RunManifest()>& describe);

  void add_votes(Votes& votes) const override;
  void read_votes(const Votes& votes) override;
  bool will_save(const TrainingProgress& progress) const override;
  bool save_if_due(TrainingProgress& progress, const std::string& data_fingerprint) override;
  void save(TrainingProgress& progress, const std::string& data_fingerprint) override;
  double longest_save() const override { return longest_save_; }
  bool has_saved(int64_t step) const override { return saved_step_ == step; }

  /// Restores the best checkpoint of a resumed run, after `progress` was filled from the resumed
  /// checkpoint: forgets a best checkpoint that no longer exists, and makes the record of the best
  /// one agree with this run.
  void restore_best(TrainingProgress& progress);
  /// Removes the record of a best checkpoint whose evaluation was not finite: older versions wrote
  /// such records.
  void drop_best(int64_t step);
  /// Loads the best checkpoint's weights into memory; there must be one. The state then no longer
  /// belongs to `progress`, and may only be read.
  void load_best(const TrainingProgress& progress);

  /// Adds to the manifest how many checkpoints of this process were saved, failed or were skipped,
  /// and how long training paused for them.
  void add_to(RunManifest& manifest) const;

  /// Ends the saves of a run that fails with `error`: waits for a save in the background if the
  /// other ranks do so too, else abandons it to the end of the process.
  void leave(const Error& error) noexcept;

  /// Writes the weights in the format of Hugging Face, unless the ranks agree to stop during the
  /// export.
  void export_model(StopAgreement& stop);

 private:
  bool decide_to_resume(const std::function<RunManifest()>& describe);
  void prepare_folder();
  void load_state(Checkpoint& checkpoint);
  ResumedRun resume(const std::function<RunManifest()>& describe);
  CheckpointMeta meta_of(const TrainingProgress& progress,
                         const std::string& data_fingerprint) const;
  bool is_due(int64_t step) const;
  bool skips() const;
  SaveOptions save_options(const TrainingProgress& progress) const;
  std::optional<BestCheckpoint> best_of(const TrainingProgress& progress) const;
  void save_in_background(TrainingProgress& progress, const std::string& data_fingerprint);
  void finish_background_save(TrainingProgress& progress);
  void mark_best(const TrainingProgress& progress);
  void report_saved(int64_t step, const SaveResult& result, double seconds, const std::string& how);

  const TrainRequest& request_;
  const Config& config_;
  Session& session_;
  const CheckpointerParts parts_;
  std::string base_weights_;
  /// The fingerprint of the model folder when training began: its files may be gone when a
  /// checkpoint records it.
  std::string model_fingerprint_;
  int64_t saved_step_ = -1;
  /// The step that the record names as the best.
  int64_t marked_step_ = -1;
  /// A text that names the step of the exported weights, if it is not the last one.
  std::string weights_of_;
  std::unique_ptr<BackgroundSave> under_way_;
  /// The saves of all ranks have ended, according to the last step's votes.
  bool all_have_ended_ = false;
  /// A save is due according to rank 0's clock (checkpoint.every_minutes).
  bool due_by_time_ = false;
  /// The clock's time when the last save began, or was skipped.
  double last_begun_;
  /// The group of the ranks' writing threads; absent if nothing is saved in the background.
  std::optional<CheckpointGroup> background_;
  int64_t saved_ = 0;
  int64_t failed_ = 0;
  int64_t skipped_ = 0;
  double longest_save_ = 0;
  double paused_seconds_total_ = 0;
  /// Seconds that training paused for the save in progress.
  double pause_of_save_ = 0;
  /// The thread that touches the snapshot's pages once, so that the first copy does not wait for
  /// them.
  std::optional<std::jthread> room_;
};

}  // namespace ftrun
