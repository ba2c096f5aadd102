#pragma once

#include "kernels/cpu/op_call.h"
#include "kernels/cpu/vector_kernels.h"

// The kinds of operations on the CPU for activations of type S (float, double, BFloat16, Float16);
// operands as in graph/op.h. 16-bit operands are computed with in fp32 and rounded once a result.
// Results have the same bits for any number of threads.
namespace ftrun::cpu {

// clang-format off
template <class S> void embed(const OpCall& call);
template <class S> void embed_wgrad(const OpCall& call);
template <class S> void rms_norm(const OpCall& call);
template <class S> void add_rms_norm(const OpCall& call);
template <class S> void rms_norm_dgrad(const OpCall& call);
template <class S> void rms_norm_wgrad(const OpCall& call);
template <class S> void linear(const OpCall& call);
template <class S> void linear_dgrad(const OpCall& call);
template <class S> void linear_wgrad(const OpCall& call);
template <class S> void lora_up(const OpCall& call);
template <class S> void lora_up_dgrad(const OpCall& call);
template <class S> void lora_up_wgrad(const OpCall& call);
template <class S> void dora_squared_lengths(const OpCall& call);
template <class S> void dora_scale(const OpCall& call);
template <class S> void dora_scale_dgrad(const OpCall& call);
template <class S> void dora_scale_wgrad(const OpCall& call);
template <class S> void dropout(const OpCall& call);
template <class S> void bias_wgrad(const OpCall& call);
template <class S> void qk_norm(const OpCall& call);
template <class S> void qk_norm_dgrad(const OpCall& call);
template <class S> void qk_norm_wgrad(const OpCall& call);
template <class S> void rope(const OpCall& call);
template <class S> void rope_dgrad(const OpCall& call);
template <class S> void attention(const OpCall& call);
template <class S> void attention_dgrad(const OpCall& call);
template <class S> void swiglu(const OpCall& call);
template <class S> void swiglu_dgrad(const OpCall& call);
template <class S> void add(const OpCall& call);
template <class S> void linear_cross_entropy(const OpCall& call);
template <class S> void vocabulary_logits(const OpCall& call);
template <class S> void vocabulary_cross_entropy(const OpCall& call);
// clang-format on
void rope_table(const OpCall& call);

/// Instantiates an operation for the types that activations may have.
#define FTRUN_FOR_STORAGE_TYPES(operation)               \
  template void operation<float>(const OpCall& call);    \
  template void operation<double>(const OpCall& call);   \
  template void operation<BFloat16>(const OpCall& call); \
  template void operation<Float16>(const OpCall& call);

}  // namespace ftrun::cpu
