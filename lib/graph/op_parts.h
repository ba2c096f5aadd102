#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;
class Derivation;

// What the entries of op_spec.cc are put together from: functions of one operation, most of them of
// one kind. `cost.h`, `workspace.h` and `derive.h` are for all kinds.

/// Floating-point operations (multiply and add count as two). cost.cc
namespace flops_of {
/// One for each element that is written.
double elements(const LayerGraph& graph, const Op& op);
/// Communication does no arithmetic.
double communication(const LayerGraph& graph, const Op& op);
double linear(const LayerGraph& graph, const Op& op);
double linear_wgrad(const LayerGraph& graph, const Op& op);
double lora(const LayerGraph& graph, const Op& op);
double dora_squared_lengths(const LayerGraph& graph, const Op& op);
double attention(const LayerGraph& graph, const Op& op);
double attention_dgrad(const LayerGraph& graph, const Op& op);
double linear_cross_entropy(const LayerGraph& graph, const Op& op);
double vocabulary_logits(const LayerGraph& graph, const Op& op);
double vocabulary_cross_entropy(const LayerGraph& graph, const Op& op);
}  // namespace flops_of

/// Bytes of scratch. workspace.cc
namespace workspace_of {
int64_t embed_wgrad(const LayerGraph& graph, const Op& op);
int64_t linear(const LayerGraph& graph, const Op& op);
int64_t linear_dgrad(const LayerGraph& graph, const Op& op);
int64_t linear_wgrad(const LayerGraph& graph, const Op& op);
int64_t lora(const LayerGraph& graph, const Op& op);
int64_t dora_squared_lengths(const LayerGraph& graph, const Op& op);
/// Of kinds whose results are gradients summed over tokens.
int64_t partial_gradients(const LayerGraph& graph, const Op& op);
int64_t attention(const LayerGraph& graph, const Op& op);
int64_t attention_dgrad(const LayerGraph& graph, const Op& op);
int64_t linear_cross_entropy(const LayerGraph& graph, const Op& op);
int64_t vocabulary_logits(const LayerGraph& graph, const Op& op);
int64_t vocabulary_cross_entropy(const LayerGraph& graph, const Op& op);
}  // namespace workspace_of

/// Bytes of scratch on a GPU. gpu_workspace.cc
namespace gpu_workspace_of {
int64_t none(const LayerGraph& graph, const Op& op);
/// The panel of a packed weight that is unpacked at a time.
int64_t packed_panel(const LayerGraph& graph, const Op& op);
/// The partial sums of gradients that kernels add up over tokens.
int64_t partial_sums(const LayerGraph& graph, const Op& op);
int64_t embed_wgrad(const LayerGraph& graph, const Op& op);
int64_t dora_squared_lengths(const LayerGraph& graph, const Op& op);
int64_t attention(const LayerGraph& graph, const Op& op);
int64_t attention_dgrad(const LayerGraph& graph, const Op& op);
int64_t linear_cross_entropy(const LayerGraph& graph, const Op& op);
int64_t vocabulary_cross_entropy(const LayerGraph& graph, const Op& op);
}  // namespace gpu_workspace_of

/// Emit the gradient operations of a forward operation. gradients.cc
namespace gradients_of {
/// Nothing that it reads has a gradient, or another kind makes it.
void no_operand(Derivation& derivation, const Op& op);
void embed(Derivation& derivation, const Op& op);
void rms_norm(Derivation& derivation, const Op& op);
void add_rms_norm(Derivation& derivation, const Op& op);
void linear(Derivation& derivation, const Op& op);
void lora_up(Derivation& derivation, const Op& op);
void dora_scale(Derivation& derivation, const Op& op);
void dropout(Derivation& derivation, const Op& op);
void qk_norm(Derivation& derivation, const Op& op);
void rope(Derivation& derivation, const Op& op);
void attention(Derivation& derivation, const Op& op);
void swiglu(Derivation& derivation, const Op& op);
void add(Derivation& derivation, const Op& op);
void linear_cross_entropy(Derivation& derivation, const Op& op);
void vocabulary_cross_entropy(Derivation& derivation, const Op& op);
void all_reduce(Derivation& derivation, const Op& op);
void all_gather(Derivation& derivation, const Op& op);
void reduce_scatter(Derivation& derivation, const Op& op);
}  // namespace gradients_of

}  // namespace ftrun
