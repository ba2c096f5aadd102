#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace ftrun::fixtures {

/// Chooses candidates greedily until every pair that some candidate has is in a chosen one. Returns
/// their numbers, the same for the same arguments. `pairs_of` lists a candidate's pairs as numbers
/// below `pairs`; the list is read before the next call.
std::vector<size_t> cover_pairs(size_t candidates, size_t pairs,
                                const std::function<std::span<const int>(size_t)>& pairs_of);

/// AxisValues are values of axes, one of each.
using AxisValues = std::vector<int>;

/// Lists rows of values, where axis a has the values 0 .. sizes[a] - 1: each pair of values of two
/// axes that is in some row for which `is_possible` holds is in a listed one, and all of those are
/// possible.
std::vector<AxisValues> covering_rows(const std::vector<int>& sizes,
                                      const std::function<bool(const AxisValues&)>& is_possible);

}  // namespace ftrun::fixtures
