#include "graph/op_spec.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

// clang-format off
constexpr std::array<OpSpec, kOpKinds> kSpecs{{
    {.kind = OpKind::kEmbed, .name = "embed", .shapes = "N V,D -> N,D", .shared_by = "V",
     .gpu_workspace = gpu_workspace_of::none, .gradients = gradients_of::embed},
    {.kind = OpKind::kEmbedWgrad, .name = "embed_wgrad", .shapes = "N N,D -> V,D", .shared_by = "V",
     .workspace = workspace_of::embed_wgrad, .gpu_workspace = gpu_workspace_of::embed_wgrad},
    {.kind = OpKind::kRopeTable, .name = "rope_table", .shapes = "N -> N,d",
     .gpu_workspace = gpu_workspace_of::none, .gradients = gradients_of::no_operand},
    {.kind = OpKind::kRmsNorm, .name = "rms_norm", .shapes = "N,D D -> N,D N", .shared_by = "N",
     .cheap_result = 0, .gpu_workspace = gpu_workspace_of::none,
     .gradients = gradients_of::rms_norm},
    {.kind = OpKind::kAddRmsNorm, .name = "add_rms_norm", .shapes = "N,D N,D D -> N,D N,D N",
     .shared_by = "N", .cheap_result = 1, .gpu_workspace = gpu_workspace_of::none,
     .gradients = gradients_of::add_rms_norm},
    {.kind = OpKind::kRmsNormDgrad, .name = "rms_norm_dgrad", .shapes = "N,D N,D N D [N,D] -> N,D",
     .shared_by = "N", .gpu_workspace = gpu_workspace_of::none},
    {.kind = OpKind::kRmsNormWgrad, .name = "rms_norm_wgrad", .shapes = "N,D N,D N -> D",
     .shared_by = "N", .gpu_pair = OpKind::kRmsNormDgrad,
     .workspace = workspace_of::partial_gradients, .gpu_workspace = gpu_workspace_of::partial_sums},
    {.kind = OpKind::kLinear, .name = "linear", .shapes = "N,I O,I [O] -> N,O", .shared_by = "OI",
     .flops = flops_of::linear, .workspace = workspace_of::linear,
     .gpu_workspace = gpu_workspace_of::packed_panel, .gradients = gradients_of::linear},
    {.kind = OpKind::kLinearDgrad, .name = "linear_dgrad", .shapes = "N,O O,I [N,I] -> N,I",
     .shared_by = "OI", .in_place = 2, .flops = flops_of::linear,
     .workspace = workspace_of::linear_dgrad, .gpu_workspace = gpu_workspace_of::packed_panel},
    {.kind = OpKind::kLinearWgrad, .name = "linear_wgrad", .shapes = "N,O N,I -> O,I",
     .shared_by = "OI", .flops = flops_of::linear_wgrad, .workspace = workspace_of::linear_wgrad,
     .gpu_workspace = gpu_workspace_of::none},
    {.kind = OpKind::kBiasWgrad, .name = "bias_wgrad", .shapes = "N,O -> O", .shared_by = "O",
     .workspace = workspace_of::partial_gradients, .gpu_workspace = gpu_workspace_of::partial_sums},
    {.kind = OpKind::kLoraUp, .name = "lora_up", .shapes = "N,O N,J O1,r1 [O2,r2] [O3,r3] -> N,O",
     .shared_by = "O", .in_place = 0, .flops = flops_of::lora, .workspace = workspace_of::lora,
     .gpu_workspace = gpu_workspace_of::none, .gradients = gradients_of::lora_up},
    {.kind = OpKind::kLoraUpDgrad, .name = "lora_up_dgrad",
     .shapes = "N,O O1,r1 [O2,r2] [O3,r3] -> N,J", .shared_by = "O", .flops = flops_of::lora,
     .workspace = workspace_of::lora, .gpu_workspace = gpu_workspace_of::none},
    {.kind = OpKind::kLoraUpWgrad, .name = "lora_up_wgrad",
     .shapes = "N,O N,J -> O1,r1 [O2,r2] [O3,r3]", .shared_by = "O", .flops = flops_of::lora,
     .workspace = workspace_of::lora, .gpu_workspace = gpu_workspace_of::none},
    {.kind = OpKind::kDoraSquaredLengths, .name = "dora_squared_lengths",
     .shapes = "O,I J,I O1,r1 [O2,r2] [O3,r3] -> M", .shared_by = "OI",
     .flops = flops_of::dora_squared_lengths, .workspace = workspace_of::dora_squared_lengths,
     .gpu_workspace = gpu_workspace_of::dora_squared_lengths,
     .gradients = gradients_of::no_operand},
    {.kind = OpKind::kDoraScale, .name = "dora_scale", .shapes = "N,O M M [O] -> N,O",
     .shared_by = "O", .cheap_result = 0, .in_place = 0, .gpu_workspace = gpu_workspace_of::none,
     .gradients = gradients_of::dora_scale},
    {.kind = OpKind::kDoraScaleDgrad, .name = "dora_scale_dgrad", .shapes = "N,O M M -> N,O",
     .shared_by = "O", .in_place = 0, .gpu_workspace = gpu_workspace_of::none},
    {.kind = OpKind::kDoraScaleWgrad, .name = "dora_scale_wgrad", .shapes = "N,O N,O M -> M",
     .shared_by = "O", .workspace = workspace_of::partial_gradients,
     .gpu_workspace = gpu_workspace_of::partial_sums},
    {.kind = OpKind::kDropout, .name = "dropout", .shapes = "N,I -> N,I", .shared_by = "I",
     .cheap_result = 0, .in_place = 0, .passes_on_terms = true,
     .gpu_workspace = gpu_workspace_of::none, .gradients = gradients_of::dropout},
    {.kind = OpKind::kQkNorm, .name = "qk_norm", .shapes = "N,Q d d -> N,Q N,R", .shared_by = "H",
     .gpu_workspace = gpu_workspace_of::none, .gradients = gradients_of::qk_norm},
    {.kind = OpKind::kQkNormDgrad, .name = "qk_norm_dgrad", .shapes = "N,Q N,Q N,R d d -> N,Q",
     .shared_by = "H", .gpu_workspace = gpu_workspace_of::none},
    {.kind = OpKind::kQkNormWgrad, .name = "qk_norm_wgrad", .shapes = "N,Q N,Q N,R -> d d",
     .shared_by = "H", .workspace = workspace_of::partial_gradients,
     .gpu_workspace = gpu_workspace_of::partial_sums},
    {.kind = OpKind::kRope, .name = "rope", .shapes = "N,Q N,d -> N,Q", .shared_by = "H",
     .in_place = 0, .gpu_workspace = gpu_workspace_of::none, .gradients = gradients_of::rope},
    {.kind = OpKind::kRopeDgrad, .name = "rope_dgrad", .shapes = "N,Q N,d -> N,Q", .shared_by = "H",
     .in_place = 0, .gpu_workspace = gpu_workspace_of::none},
    {.kind = OpKind::kAttention, .name = "attention", .shapes = "N,Q N -> N,A H,N",
     .shared_by = "H", .flops = flops_of::attention, .workspace = workspace_of::attention,
     .gpu_workspace = gpu_workspace_of::attention, .gradients = gradients_of::attention},
    {.kind = OpKind::kAttentionDgrad, .name = "attention_dgrad",
     .shapes = "N,A N,Q N,A H,N N -> N,Q", .shared_by = "H", .flops = flops_of::attention_dgrad,
     .workspace = workspace_of::attention_dgrad,
     .gpu_workspace = gpu_workspace_of::attention_dgrad},
    {.kind = OpKind::kSwiGlu, .name = "swiglu", .shapes = "N,G -> N,F", .shared_by = "F",
     .cheap_result = 0, .gpu_workspace = gpu_workspace_of::none, .gradients = gradients_of::swiglu},
    {.kind = OpKind::kSwiGluDgrad, .name = "swiglu_dgrad", .shapes = "N,F N,G -> N,G",
     .shared_by = "F", .in_place = 1, .gpu_workspace = gpu_workspace_of::none},
    {.kind = OpKind::kAdd, .name = "add", .shapes = "S S -> S", .shared_by = "S", .in_place = 0,
     .gpu_workspace = gpu_workspace_of::none, .gradients = gradients_of::add},
    {.kind = OpKind::kLinearCrossEntropy, .name = "linear_cross_entropy",
     .shapes = "N,D V,D N -> 2 [N,D] [V,D]", .once = true, .flops = flops_of::linear_cross_entropy,
     .workspace = workspace_of::linear_cross_entropy,
     .gpu_workspace = gpu_workspace_of::linear_cross_entropy,
     .gradients = gradients_of::linear_cross_entropy},
    {.kind = OpKind::kVocabularyLogits, .name = "vocabulary_logits",
     .shapes = "N,D V,D N -> C,V C,2 C", .flops = flops_of::vocabulary_logits,
     .workspace = workspace_of::vocabulary_logits, .gpu_workspace = gpu_workspace_of::none,
     .gradients = gradients_of::no_operand},
    {.kind = OpKind::kVocabularyCrossEntropy, .name = "vocabulary_cross_entropy",
     .shapes = "N,D V,D N C,V P,2 C [2] [N,D] [V,D] -> 2 [N,D] [V,D] [C,V]", .once = true,
     .flops = flops_of::vocabulary_cross_entropy,
     .workspace = workspace_of::vocabulary_cross_entropy,
     .gpu_workspace = gpu_workspace_of::vocabulary_cross_entropy,
     .gradients = gradients_of::vocabulary_cross_entropy},
    {.kind = OpKind::kTensorAllReduce, .name = "tensor_all_reduce", .shapes = "S -> S",
     .in_place = 0, .collective = Collective::kAllReduce, .flops = flops_of::communication,
     .gradients = gradients_of::all_reduce},
    {.kind = OpKind::kTensorAllGather, .name = "tensor_all_gather", .shapes = "S -> tS",
     .cheap_result = 0, .collective = Collective::kAllGather, .passes_on_terms = true,
     .flops = flops_of::communication, .gradients = gradients_of::all_gather},
    {.kind = OpKind::kTensorReduceScatter, .name = "tensor_reduce_scatter", .shapes = "tS -> S",
     .collective = Collective::kReduceScatter, .flops = flops_of::communication,
     .gradients = gradients_of::reduce_scatter},
}};
// clang-format on

constexpr bool in_order() {
  for (size_t i = 0; i < kSpecs.size(); ++i)
    if (kSpecs[i].kind != static_cast<OpKind>(i)) return false;
  return true;
}
static_assert(in_order(), "an entry a kind, in the order of OpKind");

constexpr bool says_gpu_scratch() {
  for (const OpSpec& spec : kSpecs)
    if ((spec.gpu_workspace == nullptr) != (spec.collective != Collective::kNone)) return false;
  return true;
}
static_assert(says_gpu_scratch(), "each kind that kernels run says its scratch on a GPU");

/// Whether a dimension of an operand is shared out with `letter`.
bool has_letter(std::string_view operand, char letter) {
  const std::string_view with = letter == 'H' ? "HQRA" : letter == 'F' ? "FG" : letter == 'O' ? "M" : "";
  return std::any_of(operand.begin(), operand.end(), [&](char c) {
    return c == letter || with.find(c) != std::string_view::npos;
  });
}

struct Operands {
  std::vector<std::string> in, out;
};

Operands operands_of(const OpSpec& spec) {
  const size_t arrow = spec.shapes.find(" -> ");
  return {split(spec.shapes.substr(0, arrow), ' '), split(spec.shapes.substr(arrow + 4), ' ')};
}

const OpSpec& shared_spec(OpKind kind, char letter) {
  const OpSpec& spec = op_spec(kind);
  if (spec.shared_by.find(letter) == std::string_view::npos)
    bug(cat(spec.name, " is not shared out along ", std::string(1, letter)));
  return spec;
}

}  // namespace

const OpSpec& op_spec(OpKind kind) {
  return kSpecs[static_cast<size_t>(kind)];
}

bool result_is_term(OpKind kind, size_t result, char letter) {
  return !has_letter(operands_of(shared_spec(kind, letter)).out.at(result), letter);
}

bool gradient_is_term(OpKind kind, size_t operand, char letter) {
  const Operands operands = operands_of(shared_spec(kind, letter));
  return !has_letter(operands.in.at(operand), letter) && has_letter(operands.out.at(0), letter);
}

}  // namespace ftrun
