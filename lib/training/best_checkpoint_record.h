#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/file.h"
#include "checkpoint/best_checkpoint.h"
#include "training/loop_dependencies.h"
#include "training/session.h"
#include "training/training_progress.h"

namespace ftrun {

/// BestCheckpointRecord keeps the file that names the best checkpoint
/// (checkpoint/best_checkpoint.h) in agreement with the run's evaluations.
class BestCheckpointRecord {
 public:
  /// Keeps references to all arguments except `root`, the folder of the run's checkpoints.
  BestCheckpointRecord(std::string root, Session& session, Journal& journal, FileSystem& files)
      : root_(std::move(root)), session_(session), journal_(journal), files_(files) {}

  /// Makes the record that a save of this state writes; returns nothing if it is not the best.
  static std::optional<BestCheckpoint> make_if_best(const TrainingProgress& progress);
  /// Says that a save of this state writes its record, if it is the best.
  void mark_recorded_by_save(const TrainingProgress& progress);
  /// Collective: records that the last saved state is the best, if it is. When it was saved, this
  /// was not known yet.
  void record(const TrainingProgress& progress);
  /// Collective: restores the record in a resumed run, as Checkpointer::restore_best() says.
  void restore(TrainingProgress& progress);

 private:
  void write(const BestCheckpoint& best);
  void remove_if_after(int64_t step);

  const std::string root_;
  Session& session_;
  Journal& journal_;
  FileSystem& files_;
  /// The step that the record names as the best.
  int64_t recorded_step_ = -1;
};

}  // namespace ftrun
