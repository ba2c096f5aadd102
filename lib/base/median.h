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

/// Returns the mean of the values, which must not be empty, without the largest sixteenth of them:
/// rare outliers do not count, but frequent differences do.
inline double mean_without_outliers(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto last = values.end() - static_cast<std::ptrdiff_t>(values.size() / 16);
  return std::accumulate(values.begin(), last, 0.0) / static_cast<double>(last - values.begin());
}

}  // namespace ftrun
