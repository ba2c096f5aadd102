#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/file.h"
#include "checkpoint/checkpoint_group.h"
#include "checkpoint/manifest.h"
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
  /// The recorder of rank 0, which admits a resume; null on other ranks.
  Recorder* recorder = nullptr;
  FileSystem& files;
  /// Seconds since any moment, which never decrease.
  std::function<double()> clock;
};

/// Checkpointer brings the model's state into memory when a run begins, saves it while it trains,
/// and exports the weights at its end. Every call that saves, loads or exports is collective.
class Checkpointer : public Saver {
 public:
  /// Borrows request and session.
  Checkpointer(const TrainRequest& request, Session& session, CheckpointerParts parts);

  /// Reads the model's weights, or, where --resume finds one, the state of a checkpoint of a run
  /// that this one may continue; `describe` gives this run's manifest and is called on rank 0.
  std::optional<ResumedRun> load(const std::function<RunManifest()>& describe);

  void add_votes(Votes& votes) const override;
  void read_votes(const Votes& votes) override;
  bool will_save(const TrainingProgress& progress) const override;
  bool save_if_due(TrainingProgress& progress, const std::string& data_fingerprint) override;
  void save(TrainingProgress& progress, const std::string& data_fingerprint) override;
  double longest_save() const override { return longest_save_; }
  bool has_saved(int64_t step) const override { return saved_step_ == step; }

  /// Takes up the best checkpoint of a resumed run, once its checkpoint has filled `progress`:
  /// forgets one that is gone, and makes the record of the best one that of this run.
  void restore_best(TrainingProgress& progress);
  /// Removes the record of a best checkpoint whose evaluation was not finite: older versions wrote
  /// such records.
  void drop_best(int64_t step);
  /// Brings the best checkpoint's weights into memory; there must be one. The state then no longer
  /// belongs to `progress`, and may only be read.
  void load_best(const TrainingProgress& progress);

  /// Adds how many checkpoints of this process were saved, failed, were skipped, and how long
  /// training paused for them.
  void add_to(RunManifest& manifest) const;

  /// Leaves the saves of a run that ends by `error`: waits for a save in the background where the
  /// others do so too, else leaves it to the end of the process.
  void leave(const Error& error) noexcept;

  /// Writes the weights in the format of Hugging Face, unless the ranks agree to stop meanwhile.
  void export_model(StopAgreement& stop);

 private:
  bool finds_checkpoint(const std::function<RunManifest()>& describe);
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
  /// The fingerprint of the folder when training began: its files may be gone when a checkpoint
  /// records it.
  std::string model_fingerprint_;
  int64_t saved_step_ = -1;
  /// The step that the record names as the best.
  int64_t marked_step_ = -1;
  /// A text that names the step of the exported weights, if it is not the last one.
  std::string weights_of_;
  std::unique_ptr<BackgroundSave> under_way_;
  /// All ranks' saves have ended, by the last step's votes.
  bool all_have_ended_ = false;
  /// A save is due by rank 0's clock (checkpoint.every_minutes).
  bool due_by_time_ = false;
  /// The clock's time when the last save began, or was skipped.
  double last_begun_;
  /// The group of the ranks' writing threads; absent if nothing is saved in the background.
  std::optional<CheckpointGroup> background_;
  int64_t saved_ = 0;
  int64_t failed_ = 0;
  int64_t skipped_ = 0;
  double longest_save_ = 0;
  double held_seconds_ = 0;
  /// Seconds that training paused for the save in progress.
  double paused_seconds_ = 0;
  /// The thread that touches the snapshot's pages once, so that the first copy need not wait.
  std::optional<std::jthread> room_;
};

}  // namespace ftrun
