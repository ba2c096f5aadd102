#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;

// The scratch memory of operations. The planner asks for the bytes; how an operation lays them out,
// which the kernels rely on, is in ops/KIND. (Declarations only: the vector kernels include this
// file.)

/// Returns the bytes of scratch that an operation needs with `values`' shapes and the graph's
/// kernels, which rely on exactly this.
int64_t workspace_bytes(const LayerGraph& graph, const Op& op);

/// Rows summed into one partial gradient of a norm weight or bias; partial gradients are added in
/// order.
inline constexpr int64_t kWgradRows = 64;

/// The most partial sums on a GPU of a gradient that is summed over tokens: with more, the sum over
/// them would take long.
inline constexpr int64_t kMostGpuPartials = 256;
/// Rows of tokens that a partial sum takes at least.
inline constexpr int64_t kGpuPartialRows = 8;
/// Returns the number of partial sums of a gradient over `tokens`.
int64_t gpu_partials(int64_t tokens);

}  // namespace ftrun
