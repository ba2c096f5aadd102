#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;
class Derivation;
class OpWork;

// Parts that entries of many kinds share (ops/KIND/spec.cc): functions of one operation.

/// Functions for the work of operations, of kinds that move each operand once.
namespace work_of {
/// Counts one floating-point operation for each element that is written.
OpWork elements(const LayerGraph& graph, const Op& op);
/// Counts one exponential or its like for each element that is written.
OpWork transcendentals(const LayerGraph& graph, const Op& op);
/// Counts no arithmetic.
OpWork communication(const LayerGraph& graph, const Op& op);
}  // namespace work_of

/// Functions for the bytes of scratch.
namespace workspace_of {
int64_t none(const LayerGraph& graph, const Op& op);
/// Counts partial gradients on processors, of kinds whose results are gradients summed over tokens.
int64_t partial_gradients(const LayerGraph& graph, const Op& op);
/// Counts partial sums on a GPU, of the same kinds.
int64_t gpu_partial_sums(const LayerGraph& graph, const Op& op);
}  // namespace workspace_of

/// Functions that emit the gradient operations of a forward operation.
namespace gradients_of {
/// Emits no gradient: nothing that the operation reads has one, or another kind makes it.
void no_operand(Derivation& derivation, const Op& op);
}  // namespace gradients_of

}  // namespace ftrun
