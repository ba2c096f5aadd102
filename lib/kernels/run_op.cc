#include "base/error.h"
#include "kernels/cpu/op_call.h"
#include "kernels/cpu/ops.h"
#include "kernels/kernels.h"
#include "kernels/working_dtype.h"

namespace ftrun {

namespace {

// clang-format off
template <class S>
void run_as(const OpCall& call) {
  switch (call.kind()) {
    case OpKind::kEmbed: return cpu::embed<S>(call);
    case OpKind::kEmbedWgrad: return cpu::embed_wgrad<S>(call);
    case OpKind::kRopeTable: return cpu::rope_table(call);
    case OpKind::kRmsNorm: return cpu::rms_norm<S>(call);
    case OpKind::kAddRmsNorm: return cpu::add_rms_norm<S>(call);
    case OpKind::kRmsNormDgrad: return cpu::rms_norm_dgrad<S>(call);
    case OpKind::kRmsNormWgrad: return cpu::rms_norm_wgrad<S>(call);
    case OpKind::kLinear: return cpu::linear<S>(call);
    case OpKind::kLinearDgrad: return cpu::linear_dgrad<S>(call);
    case OpKind::kLinearWgrad: return cpu::linear_wgrad<S>(call);
    case OpKind::kLoraUp: return cpu::lora_up<S>(call);
    case OpKind::kLoraUpDgrad: return cpu::lora_up_dgrad<S>(call);
    case OpKind::kLoraUpWgrad: return cpu::lora_up_wgrad<S>(call);
    case OpKind::kDoraSquaredLengths: return cpu::dora_squared_lengths<S>(call);
    case OpKind::kDoraScale: return cpu::dora_scale<S>(call);
    case OpKind::kDoraScaleDgrad: return cpu::dora_scale_dgrad<S>(call);
    case OpKind::kDoraScaleWgrad: return cpu::dora_scale_wgrad<S>(call);
    case OpKind::kDropout: return cpu::dropout<S>(call);
    case OpKind::kBiasWgrad: return cpu::bias_wgrad<S>(call);
    case OpKind::kQkNorm: return cpu::qk_norm<S>(call);
    case OpKind::kQkNormDgrad: return cpu::qk_norm_dgrad<S>(call);
    case OpKind::kQkNormWgrad: return cpu::qk_norm_wgrad<S>(call);
    case OpKind::kRope: return cpu::rope<S>(call);
    case OpKind::kRopeDgrad: return cpu::rope_dgrad<S>(call);
    case OpKind::kAttention: return cpu::attention<S>(call);
    case OpKind::kAttentionDgrad: return cpu::attention_dgrad<S>(call);
    case OpKind::kSwiGlu: return cpu::swiglu<S>(call);
    case OpKind::kSwiGluDgrad: return cpu::swiglu_dgrad<S>(call);
    case OpKind::kAdd: return cpu::add<S>(call);
    case OpKind::kLinearCrossEntropy: return cpu::linear_cross_entropy<S>(call);
    case OpKind::kVocabularyLogits: return cpu::vocabulary_logits<S>(call);
    case OpKind::kVocabularyCrossEntropy: return cpu::vocabulary_cross_entropy<S>(call);
    case OpKind::kTensorAllReduce:
    case OpKind::kTensorAllGather:
    case OpKind::kTensorReduceScatter: bug(cat(op_name(call.kind()), " is no work for a kernel"));
  }
  bug("unknown operation kind");
}
// clang-format on

}  // namespace

void* OpCall::address(ValueId id, DType dtype) const {
  require(id >= 0 && static_cast<size_t>(id) < storage_.size(), "operand has a place in storage");
  const Value& value = graph_.at(id);
  if (value.stored_dtype() != dtype)
    bug(cat(op_name(op_.kind), ": ", value.name, " is ", dtype_name(value.stored_dtype()),
            ", the kernel wants ", dtype_name(dtype)));
  void* const address = storage_[static_cast<size_t>(id)];
  if (address == nullptr) bug(cat(op_name(op_.kind), ": ", value.name, " has no storage"));
  return address;
}

void run_op(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
            const KernelContext& context) {
  const OpCall call(graph, op, storage, context);
  switch (const DType dtype = working_dtype(graph, op)) {
    case DType::kF32:
      return run_as<float>(call);
    case DType::kF64:
      return run_as<double>(call);
    case DType::kBF16:
      return run_as<BFloat16>(call);
    case DType::kF16:
      return run_as<Float16>(call);
    default:
      throw Error(ExitCode::kUnsupported,
                  cat("the CPU kernels know no activations in ", dtype_name(dtype), " (",
                      op_name(op.kind), ")"),
                  "train in fp32, bf16 or fp16");
  }
}

}  // namespace ftrun
