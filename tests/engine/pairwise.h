#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace ftrun::testing {

/// Chooses candidates greedily until each pair that any candidate has is in a chosen one. Returns
/// the indices of the chosen candidates; equal arguments give equal results. `pairs_of` lists a
/// candidate's pairs as numbers below `pairs`; its result is used only until the next call.
std::vector<size_t> cover_pairs(size_t candidates, size_t pairs,
                                const std::function<std::span<const int>(size_t)>& pairs_of);

/// AxisValues holds one value for each axis.
using AxisValues = std::vector<int>;

/// Lists possible rows of values, where axis a has the values 0 .. sizes[a] - 1. Every pair of
/// values of two axes that occurs in any possible row (one for which `is_possible` returns true)
/// occurs in a listed one.
std::vector<AxisValues> covering_rows(const std::vector<int>& sizes,
                                      const std::function<bool(const AxisValues&)>& is_possible);

}  // namespace ftrun::testing
