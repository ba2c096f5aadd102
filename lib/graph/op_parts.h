#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;
class Derivation;

// Parts that entries of many kinds share (ops/KIND/spec.cc): functions of one operation.

/// Floating-point operations (multiply and add count as two).
namespace flops_of {
/// One for each element that is written.
double elements(const LayerGraph& graph, const Op& op);
/// Communication does no arithmetic.
double communication(const LayerGraph& graph, const Op& op);
}  // namespace flops_of

/// Bytes of scratch.
namespace workspace_of {
int64_t none(const LayerGraph& graph, const Op& op);
/// Partial gradients on processors, of kinds whose results are gradients summed over tokens.
int64_t partial_gradients(const LayerGraph& graph, const Op& op);
/// Partial sums on a GPU, of the same kinds.
int64_t gpu_partial_sums(const LayerGraph& graph, const Op& op);
}  // namespace workspace_of

/// Emit the gradient operations of a forward operation.
namespace gradients_of {
/// Nothing that it reads has a gradient, or another kind makes it.
void no_operand(Derivation& derivation, const Op& op);
}  // namespace gradients_of

}  // namespace ftrun
