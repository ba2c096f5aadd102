#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/table.h"
#include "base/text.h"
#include "report/loss_table.h"

namespace ftrun {
namespace {

/// Chooses `count` entries of `from`, evenly spread, including the first and the last.
std::set<size_t> choose_evenly(const std::vector<size_t>& from, size_t count) {
  std::set<size_t> chosen;
  if (from.size() <= count) return {from.begin(), from.end()};
  for (size_t i = 0; i < count; ++i) chosen.insert(from[i * (from.size() - 1) / (count - 1)]);
  return chosen;
}

/// Chooses the indices of the rows to show, at most `count` (at least 2).
std::set<size_t> choose_rows(const std::vector<StepMetrics>& metrics, size_t count) {
  std::vector<size_t> all_rows, validated_rows;
  for (size_t i = 0; i < metrics.size(); ++i) {
    all_rows.push_back(i);
    const bool edge = i == 0 || i + 1 == metrics.size();
    if (edge || !metrics[i].evaluations.empty()) validated_rows.push_back(i);
  }
  const bool by_validation = std::any_of(metrics.begin(), metrics.end(), [](const StepMetrics& m) {
    return m.trained && !m.evaluations.empty();
  });
  // The two validations before the first step and after the last one alone are too few to choose
  // the rows by.
  return choose_evenly(by_validation && validated_rows.size() > 3 ? validated_rows : all_rows,
                       count);
}

/// IntervalSums holds sums over the steps since the previous row.
struct IntervalSums {
  double loss = 0;
  int64_t losses = 0;
  double tokens = 0;
  double seconds = 0;
  int64_t steps = 0;
  void add(const StepMetrics& m) {
    if (!m.trained) return;
    if (m.tokens > 0) {
      loss += m.loss;
      ++losses;
    }
    tokens += static_cast<double>(m.tokens);
    seconds += m.step_seconds;
    ++steps;
  }
};

std::vector<std::string> list_sets(const std::vector<StepMetrics>& metrics) {
  std::vector<std::string> sets;
  for (const StepMetrics& m : metrics)
    for (const EvaluationResult& evaluation : m.evaluations)
      if (std::find(sets.begin(), sets.end(), evaluation.set) == sets.end())
        sets.push_back(evaluation.set);
  return sets;
}

std::string loss_text_of_set(const std::string& set, const StepMetrics& m) {
  for (const EvaluationResult& evaluation : m.evaluations)
    if (evaluation.set == set && evaluation.has_value())
      return format_number("%.4f", evaluation.loss);
  return "-";
}

std::vector<std::string> table_row(const StepMetrics& m, const IntervalSums& sums,
                                   const std::vector<std::string>& sets) {
  std::vector<std::string> row{
      std::to_string(m.step),
      sums.losses > 0 ? format_number("%.4f", sums.loss / static_cast<double>(sums.losses)) : "-"};
  for (const std::string& set : sets) row.push_back(loss_text_of_set(set, m));
  row.push_back(sums.seconds > 0 ? format_number("%.0f", sums.tokens / sums.seconds) : "-");
  return row;
}

}  // namespace

std::string loss_table(const std::vector<StepMetrics>& metrics, int rows) {
  const std::set<size_t> chosen = choose_rows(metrics, static_cast<size_t>(std::max(rows, 2)));
  std::vector<std::vector<std::string>> cells;
  std::vector<std::string> sets = list_sets(metrics);
  if (sets.empty()) sets.emplace_back("validation");
  IntervalSums sums;
  bool means = false;
  for (size_t i = 0; i < metrics.size(); ++i) {
    sums.add(metrics[i]);
    if (!chosen.contains(i)) continue;
    cells.push_back(table_row(metrics[i], sums, sets));
    means = means || sums.steps > 1;
    sums = {};
  }
  std::vector<std::string> head{"step", "training loss"};
  for (const std::string& set : sets) head.push_back(set + " loss");
  head.emplace_back("tokens/s");
  return format_table(head, cells) +
         (means ? "(training loss and tokens/s: of all steps since the row above)\n" : "");
}

}  // namespace ftrun
