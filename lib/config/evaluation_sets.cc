#include "config/evaluation_sets.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {

std::vector<EvaluationSet> evaluation_sets(const DataConfig& data) {
  std::vector<EvaluationSet> sets;
  for (size_t i = 0; i < data.validation.size(); ++i) {
    const std::string name =
        i < data.validation_names.size() ? data.validation_names[i] : "validation";
    auto set = std::find_if(sets.begin(), sets.end(),
                            [&](const EvaluationSet& other) { return other.name == name; });
    if (set == sets.end()) set = sets.insert(sets.end(), {name, {}});
    set->paths.push_back(data.validation[i]);
  }
  return sets;
}

std::optional<EvaluationMetric> find_evaluation_metric(const DataConfig& data,
                                                       std::string_view name) {
  const std::vector<EvaluationSet> sets = evaluation_sets(data);
  for (size_t set = 0; set < sets.size(); ++set)
    for (size_t kind = 0; kind < EnumNames<MetricKind>::kNames.size(); ++kind)
      if (name == cat(sets[set].name, ".", EnumNames<MetricKind>::kNames[kind]))
        return EvaluationMetric{set, static_cast<MetricKind>(kind)};
  return std::nullopt;
}

std::vector<std::string> metric_names(const DataConfig& data) {
  std::vector<std::string> names;
  for (const EvaluationSet& set : evaluation_sets(data))
    for (const std::string_view kind : EnumNames<MetricKind>::kNames)
      names.push_back(cat(set.name, ".", kind));
  return names;
}

bool larger_is_better(const EvaluationMetric& metric) {
  return metric.kind == MetricKind::kAccuracy;
}

}  // namespace ftrun
