#include "training/best_checkpoint_record.h"

#include "base/error.h"
#include "checkpoint/checkpoint_manifest.h"

namespace ftrun {

std::optional<BestCheckpoint> BestCheckpointRecord::make_if_best(const TrainingProgress& progress) {
  const EvaluationRecord& record = progress.evaluations;
  if (!record.is_best(progress.step)) return std::nullopt;
  return BestCheckpoint{progress.step, record.metric(), record.best()->value};
}

void BestCheckpointRecord::mark_recorded_by_save(const TrainingProgress& progress) {
  if (progress.evaluations.is_best(progress.step)) recorded_step_ = progress.step;
}

void BestCheckpointRecord::record(const TrainingProgress& progress) {
  const std::optional<BestCheckpoint> best = make_if_best(progress);
  if (best && recorded_step_ != best->step) write(*best);
}

void BestCheckpointRecord::restore(TrainingProgress& progress) {
  const auto exists = [&] {
    return files_.exists(checkpoint_manifest_path(
        cat(root_, "/", step_folder_name(progress.evaluations.best()->step))));
  };
  while (progress.evaluations.best() &&
         !session_.broadcast_decision("looking for the best checkpoint", exists)) {
    const int64_t step = progress.evaluations.best()->step;
    journal_.warn(
        cat(root_, "/", step_folder_name(step),
            ": the best checkpoint is missing; the one before it or a later one replaces it"));
    progress.evaluations.forget_best(step);
  }
  const auto& best = progress.evaluations.best();
  if (!best) return remove_if_after(progress.step);
  write({best->step, progress.evaluations.metric(), best->value});
}

void BestCheckpointRecord::write(const BestCheckpoint& best) {
  session_.run_on_all_ranks("noting the best checkpoint", [&] {
    if (session_.is_first()) write_best_record(files_, root_, best);
  });
  recorded_step_ = best.step;
}

/// Removes the record if it names a step after `step`.
void BestCheckpointRecord::remove_if_after(int64_t step) {
  session_.run_on_all_ranks("removing the record of the best checkpoint", [&] {
    if (!session_.is_first()) return;
    const std::optional<BestCheckpoint> best = read_best_record(files_, root_);
    if (best && best->step > step) remove_best_record(files_, root_);
  });
}

}  // namespace ftrun
