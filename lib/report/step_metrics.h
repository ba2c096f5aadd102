#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

struct NamedCount {
  std::string name;
  int64_t value = 0;
};

struct NamedBytes {
  std::string name;
  int64_t bytes = 0;
};

/// EvaluationResult is the result of an evaluation on one data set, which has its own line in
/// metrics.jsonl.
struct EvaluationResult {
  std::string set;
  /// The mean over the set's counted tokens; NaN if no token counts.
  double loss = 0;
  /// The share of the counted tokens to which the model gives the highest probability; absent if no
  /// token counts.
  std::optional<double> accuracy;
  int64_t tokens = 0;
  double seconds = 0;
  double perplexity() const;
  /// Returns whether any token counts; otherwise the result has no value to compare.
  bool has_value() const;
  /// Returns whether tokens count and their loss is NaN or infinity. The model is then broken, and
  /// its accuracy means nothing either.
  bool is_nonfinite() const;
};

/// Returns whether the loss of any set is NaN or infinity.
bool is_nonfinite(const std::vector<EvaluationResult>& results);

/// StepMetrics holds the measurements of one optimizer step: one line of metrics.jsonl, followed by
/// one line for each evaluation after the step. Times are in seconds, measured on rank 0.
struct StepMetrics {
  /// The number of the step, from 1; 0 is the state before training.
  int64_t step = 0;
  /// Says whether the step was trained. False: this is only an evaluation before the first step,
  /// and only `step` and the evaluations are written.
  bool trained = true;
  /// The number of sequences read by all ranks since training began, this step included.
  int64_t samples = 0;
  /// The mean over the counted tokens of the global batch; NaN if no token counts.
  double loss = 0;
  /// The gradient norm before clipping.
  double gradient_norm = 0;
  double learning_rate = 0;
  /// The number of counted tokens of this step, over all ranks.
  int64_t tokens = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  /// Seconds that the step waited for its batch.
  double data_wait_seconds = 0;
  /// Seconds during which communication with other ranks ran and computation was idle, if they are
  /// known.
  std::optional<double> exposed_communication_seconds;
  /// The loss scale, with dynamic or static loss scaling.
  std::optional<double> loss_scale;
  /// Says whether the update was skipped because the loss or a gradient was not finite.
  bool skipped = false;
  /// The evaluations after this step, in the order of the config.
  std::vector<EvaluationResult> evaluations;
  /// Counters of rank 0 since the process began: bytes sent, bytes read from disk, ...
  std::vector<NamedCount> counters;
  /// Bytes that rank 0 was observed to use, by category.
  std::vector<NamedBytes> memory;
};

/// Formats the step without its evaluations, as one JSON object without a line end. Numbers have
/// enough digits to be read back as the same double; values that are not finite are written as the
/// strings "NaN", "Infinity" and "-Infinity".
std::string metrics_line(const StepMetrics& metrics);
/// Returns the text {"step": 20, "evaluation": "validation", "loss": ...}, with numbers as in
/// metrics_line().
std::string evaluation_line(int64_t step, const EvaluationResult& evaluation);
/// Returns all lines of a step, each with its line end.
std::string metrics_lines(const StepMetrics& metrics);

/// Parses one line of metrics_lines(). The line of an evaluation gives a step that has only that
/// evaluation. Returns nothing if the text is not a JSON object with an integer "step", or if a
/// known field has a wrong type. Unknown fields are ignored.
std::optional<StepMetrics> parse_metrics_line(std::string_view line);

/// Reads every step of a metrics.jsonl with its evaluations. Throws Error(kBadInput) when the file
/// cannot be read; incomplete or foreign lines are skipped, and counted in `unreadable` if it is
/// given.
std::vector<StepMetrics> read_metrics(const std::string& path, int64_t* unreadable = nullptr);

/// Scalar is a number for a chart: "train/loss" = 3.25.
struct Scalar {
  std::string tag;
  double value = 0;
};

/// Returns the step as scalars for TensorBoard: train/, SET/ (of evaluations), time/, counters/ and
/// memory/. Scalars without a value, because no token counts, are left out.
std::vector<Scalar> tensorboard_scalars(const StepMetrics& metrics);

}  // namespace ftrun
