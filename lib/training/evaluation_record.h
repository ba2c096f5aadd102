#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/evaluation_sets.h"
#include "report/step_metrics.h"

namespace ftrun {

/// EvaluationRecord keeps the history of a run's evaluations: which one was the best
/// (checkpoint.keep_best), and whether they still improve (train.early_stopping). It also knows
/// whether the last training loss was finite. All ranks have the same history, and checkpoints
/// contain it. The evaluation before the first step is never the best and never an improvement,
/// because nothing has been trained yet.
class EvaluationRecord {
 public:
  explicit EvaluationRecord(const Config& config);

  /// Adds the results of all sets, in the order of the config. If the loss of any set, or the
  /// metric itself, is not finite, the evaluation is never the best, and never an improvement. If
  /// the metric's set has no counted tokens, the metric has no value, and the evaluation counts
  /// neither as an improvement nor as a failure to improve.
  void add(int64_t step, const std::vector<EvaluationResult>& results);
  /// Records whether the training loss of a step is finite, for export_problem(). In a run without
  /// evaluations it is the only measure of the weights' quality. A step without counted tokens is
  /// ignored.
  void record_training_loss(double loss, int64_t tokens);

  /// Returns the reason why the weights after `step`, the last step, must not be exported: "the
  /// loss on validation after step 8 is not finite"; "" if no reason is known.
  std::string export_problem(int64_t step) const;

  struct BestEvaluation {
    int64_t step = 0;
    double value = 0;
  };
  /// Returns the best evaluation, strictly better than all before it.
  std::optional<BestEvaluation> best() const { return best_before(0); }
  /// Returns whether the state after this step is the best so far.
  bool is_best(int64_t step) const { return !bests_.empty() && bests_.front().step == step; }
  /// Forgets the best checkpoint after `step`, because it could not be written or no longer exists;
  /// the previous best becomes the best again. So the best is known even if the saves of the last
  /// two bests fail: the first of them may still be in progress when the second is found.
  void forget_best(int64_t step);
  /// Returns the metric by which the best checkpoint is chosen; "" if no best checkpoint is kept.
  const std::string& metric() const { return keep_best_.metric; }

  /// Returns whether early stopping ends the run: none of the last early_stopping.patience
  /// evaluations has improved.
  bool should_stop() const;
  /// Returns the reason why the run stops: "validation.loss has not improved by more than 0.01 in 3
  /// evaluations (best 3.125 after step 10)".
  std::string stop_reason() const;

  /// Forgets the evaluation after `step`, because the loss on `set` was not finite. A record of an
  /// older version may have counted it.
  void forget(int64_t step, const std::string& set);
  /// Returns whether an older version wrote the restored text, which counted evaluations that are
  /// not finite.
  bool was_written_by_older_version() const { return was_written_by_older_version_; }

  /// Returns the step of the last evaluation; -1 before any.
  int64_t last_step() const { return last_step_; }

  /// Formats the record for a checkpoint. restore() ignores a text whose metric or mode differs
  /// from the config's.
  std::string text() const;
  void restore(const std::string& text);

 private:
  void record_best(int64_t step, const std::vector<EvaluationResult>& results);
  void record_improvement(int64_t step, const std::vector<EvaluationResult>& results);
  std::optional<BestEvaluation> best_before(size_t newer) const;

  KeepBestConfig keep_best_;
  EarlyStoppingConfig early_stopping_;
  std::optional<EvaluationMetric> best_metric_, stop_metric_;
  int64_t last_step_ = -1;
  /// The first set of the last evaluation whose loss was not finite; "" for none.
  std::string nonfinite_set_;
  bool last_loss_is_finite_ = true;
  bool was_written_by_older_version_ = false;
  /// The best evaluation, and up to two that were the best before it, the newest first. The oldest
  /// is needed only while the previous best is being written. text() leaves it out, because each
  /// checkpoint is made after the save before it has ended.
  std::vector<BestEvaluation> bests_;
  /// The last evaluation that improved, and the number of evaluations since then that did not.
  std::optional<BestEvaluation> last_improvement_;
  int64_t evaluations_without_improvement_ = 0;
};

/// Returns the value of a set's metric: "loss", "perplexity" or "accuracy".
double metric_value(MetricKind kind, const EvaluationResult& result);

}  // namespace ftrun
