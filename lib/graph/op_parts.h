#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;
class BackwardBuilder;
class OpWork;

// The entries of many kinds (ops/KIND/spec.cc) share the functions of this header. Each function
// describes one operation.

/// work_of has functions that return the work of operations that read or write each operand once.
namespace work_of {
/// Counts one floating-point operation for each element that is written.
OpWork elements(const LayerGraph& graph, const Op& op);
/// Counts one exponential or similar function for each element that is written.
OpWork transcendentals(const LayerGraph& graph, const Op& op);
/// Counts no arithmetic.
OpWork communication(const LayerGraph& graph, const Op& op);
}  // namespace work_of

/// workspace_of has functions that return bytes of scratch.
namespace workspace_of {
int64_t none(const LayerGraph& graph, const Op& op);
/// Returns the bytes of partial gradients on CPUs, for kinds whose results are gradients
/// summed over tokens.
int64_t partial_gradients(const LayerGraph& graph, const Op& op);
/// Returns the bytes of partial sums on a GPU, for the same kinds.
int64_t gpu_partial_sums(const LayerGraph& graph, const Op& op);
}  // namespace workspace_of

/// gradients_of has functions that emit the gradient operations of a forward operation.
namespace gradients_of {
/// Emits no gradient: the operation's operands have none, or another kind computes them.
void none(BackwardBuilder& builder, const Op& op);
}  // namespace gradients_of

}  // namespace ftrun
