#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// EvaluationSet is one data set of data.validation.
struct EvaluationSet {
  std::string name;
  std::vector<std::string> paths;
};

/// Lists the sets in the order in which their names are written; a set without a name is called
/// "validation".
std::vector<EvaluationSet> evaluation_sets(const DataConfig& data);

/// MetricKind lists the quantities that an evaluation measures on a set.
enum class MetricKind { kLoss, kPerplexity, kAccuracy };
template <>
struct EnumNames<MetricKind> {
  static constexpr auto kNames = enum_names<MetricKind>({"loss", "perplexity", "accuracy"});
};

/// EvaluationMetric is a set and the metric that is measured on it: "validation.loss".
struct EvaluationMetric {
  size_t set = 0;
  MetricKind kind = MetricKind::kLoss;
};

/// Finds a metric by its name; nothing if the config's sets have no metric of this name.
std::optional<EvaluationMetric> find_evaluation_metric(const DataConfig& data,
                                                       std::string_view name);
/// Lists the names of all metrics: "validation.loss", "validation.perplexity", ...
std::vector<std::string> metric_names(const DataConfig& data);

/// Returns whether a larger value of the metric is better.
bool larger_is_better(const EvaluationMetric& metric);

}  // namespace ftrun
