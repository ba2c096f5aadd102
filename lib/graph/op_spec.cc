#include "graph/op_spec.h"

#include <array>
#include <cstddef>

namespace ftrun {
namespace {

// clang-format off
constexpr std::array<OpSpec, kOpKinds> kSpecs{{
    {OpKind::kEmbed, "embed", "N V,D -> N,D"},
    {OpKind::kEmbedWgrad, "embed_wgrad", "N N,D -> V,D"},
    {OpKind::kRopeTable, "rope_table", "N -> N,d"},
    {OpKind::kRmsNorm, "rms_norm", "N,D D -> N,D N", {.cheap = true}},
    {OpKind::kAddRmsNorm, "add_rms_norm", "N,D N,D D -> N,D N,D N", {.cheap = true}},
    {OpKind::kRmsNormDgrad, "rms_norm_dgrad", "N,D N,D N D [N,D] -> N,D"},
    {OpKind::kRmsNormWgrad, "rms_norm_wgrad", "N,D N,D N -> D"},
    {OpKind::kLinear, "linear", "N,I O,I [O] -> N,O"},
    {OpKind::kLinearDgrad, "linear_dgrad", "N,O O,I -> N,I"},
    {OpKind::kLinearWgrad, "linear_wgrad", "N,O N,I -> O,I"},
    {OpKind::kBiasWgrad, "bias_wgrad", "N,O -> O"},
    {OpKind::kQkNorm, "qk_norm", "N,Q d d -> N,Q N,R"},
    {OpKind::kQkNormDgrad, "qk_norm_dgrad", "N,Q N,Q N,R d d -> N,Q"},
    {OpKind::kQkNormWgrad, "qk_norm_wgrad", "N,Q N,Q N,R -> d d"},
    {OpKind::kRope, "rope", "N,Q N,d -> N,Q", {.in_place = 0}},
    {OpKind::kRopeDgrad, "rope_dgrad", "N,Q N,d -> N,Q", {.in_place = 0}},
    {OpKind::kAttention, "attention", "N,Q N -> N,A H,N"},
    {OpKind::kAttentionDgrad, "attention_dgrad", "N,A N,Q N,A H,N N -> N,Q"},
    {OpKind::kSwiGlu, "swiglu", "N,G -> N,F", {.cheap = true}},
    {OpKind::kSwiGluDgrad, "swiglu_dgrad", "N,F N,G -> N,G", {.in_place = 1}},
    {OpKind::kAdd, "add", "S S -> S", {.in_place = 0}},
    {OpKind::kLinearCrossEntropy, "linear_cross_entropy", "N,D V,D N -> 2 [N,D] [V,D]", {.once = true}},
    {OpKind::kVocabularyLogits, "vocabulary_logits", "N,D V,D N -> C,V C,2 C"},
    {OpKind::kVocabularyCrossEntropy, "vocabulary_cross_entropy",
     "N,D V,D N C,V P,2 C [2] [N,D] [V,D] -> 2 [N,D] [V,D] [C,V]", {.once = true}},
    {OpKind::kTensorAllReduce, "tensor_all_reduce", "S -> S", {.collective = true, .in_place = 0}},
    {OpKind::kTensorAllGather, "tensor_all_gather", "S -> tS", {.cheap = true, .collective = true}},
    {OpKind::kTensorReduceScatter, "tensor_reduce_scatter", "tS -> S", {.collective = true}},
}};
// clang-format on

constexpr bool in_order() {
  for (size_t i = 0; i < kSpecs.size(); ++i)
    if (kSpecs[i].kind != static_cast<OpKind>(i)) return false;
  return true;
}
static_assert(in_order(), "an entry a kind, in the order of OpKind");

}  // namespace

const OpSpec& op_spec(OpKind kind) {
  return kSpecs[static_cast<size_t>(kind)];
}

}  // namespace ftrun
