#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;

// The functions of this header return the size of operations' scratch memory, for the planner. The
// layout inside it, on which the kernels rely, is in ops/KIND. (The header has declarations only,
// because the vector kernels include it.)

/// Returns the bytes of scratch that an operation needs, for the shapes of its values and the
/// graph's kernels, which rely on exactly this number.
int64_t workspace_bytes(const LayerGraph& graph, const Op& op);

/// The number of rows that are summed into one partial gradient of a norm weight or bias; partial
/// gradients are added in order.
inline constexpr int64_t kWgradRows = 64;

/// The largest number of partial sums on a GPU for a gradient that is summed over tokens. Adding
/// more of them would take too long.
inline constexpr int64_t kMaxGpuPartials = 256;
/// The smallest number of tokens that one partial sum adds.
inline constexpr int64_t kGpuPartialRows = 8;
/// Returns the number of partial sums of a gradient over `tokens`.
int64_t count_gpu_partials(int64_t tokens);

}  // namespace ftrun
