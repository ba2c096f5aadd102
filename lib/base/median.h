#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace ftrun {

/// Returns the median of the values, which must not be empty; of two middle values, the lower one.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Returns the mean of the middle half of the values, which must not be empty: a few outliers do
/// not count, but frequent differences do.
inline double middle_mean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto quarter = static_cast<std::ptrdiff_t>(values.size() / 4);
  const auto first = values.begin() + quarter, last = values.end() - quarter;
  return std::accumulate(first, last, 0.0) / static_cast<double>(last - first);
}

}  // namespace ftrun
