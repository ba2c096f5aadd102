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

/// What one optimizer step reports; one line of metrics.jsonl. Times are seconds of rank 0.
struct StepMetrics {
  /// Counted from 1; 0 is the state before training.
  int64_t step = 0;
  /// False for a line that holds only a validation (before the first step): of the other fields
  /// only `step` is written then.
  bool trained = true;
  /// Samples read by all ranks since training began, this step included.
  int64_t samples = 0;
  /// Mean over the counted tokens of the global batch.
  double loss = 0;
  /// Before clipping.
  double grad_norm = 0;
  double learning_rate = 0;
  /// Counted tokens of this step, over all ranks.
  int64_t tokens = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  /// Time that the step stood waiting for its batch.
  double data_wait_seconds = 0;
  /// Time in which communication with other ranks ran and computation stood still, where it is known.
  std::optional<double> exposed_communication_seconds;
  /// Present with dynamic or static loss scaling.
  std::optional<double> loss_scale;
  /// True when the update was left out because a gradient was not finite.
  bool skipped = false;
  /// Mean over the counted tokens of the validation set, after this step.
  std::optional<double> validation_loss;
  std::optional<double> validation_seconds;
  /// Counts of rank 0 since the process began: bytes sent, bytes read from disk, ...
  std::vector<NamedCount> counters;
  /// Bytes that rank 0 was seen to use, by category.
  std::vector<NamedBytes> memory;
};

/// One JSON object without a line end. Numbers carry all digits that read back as the same double;
/// values that are not finite are the strings "NaN", "Infinity" and "-Infinity".
std::string metrics_line(const StepMetrics& metrics);

/// The inverse. Nothing when the text is not one JSON object with an integer "step", or when a
/// known field has a wrong type. Unknown fields are passed over.
std::optional<StepMetrics> parse_metrics_line(std::string_view line);

/// Every readable line of a metrics.jsonl. Error(kBadInput) when the file cannot be read; lines
/// that are torn or foreign are passed over.
std::vector<StepMetrics> read_metrics(const std::string& path);

/// A number for a chart: "train/loss" = 3.25.
struct Scalar {
  std::string tag;
  double value = 0;
};

/// The step as scalars for TensorBoard: train/, validation/, time/, counters/ and memory/.
std::vector<Scalar> step_scalars(const StepMetrics& metrics);

}  // namespace ftrun
