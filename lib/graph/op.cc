#include "graph/op.h"

#include <array>
#include <cstddef>

namespace ftrun {

std::string_view op_name(OpKind kind) {
  static constexpr std::array<std::string_view, 22> kNames{
      "embed",        "embed_wgrad",    "rope_table",    "rms_norm",       "add_rms_norm",
      "rms_norm_dgrad", "rms_norm_wgrad", "linear",      "linear_dgrad",   "linear_wgrad",
      "bias_wgrad",   "qk_norm",        "qk_norm_dgrad", "qk_norm_wgrad",  "rope",
      "rope_dgrad",   "attention",      "attention_dgrad", "swiglu",       "swiglu_dgrad",
      "add",          "linear_cross_entropy"};
  return kNames[static_cast<size_t>(kind)];
}

bool is_cheap(OpKind kind) {
  return kind == OpKind::kRmsNorm || kind == OpKind::kAddRmsNorm || kind == OpKind::kSwiGlu;
}

int in_place_input(OpKind kind) {
  switch (kind) {
    case OpKind::kRope:
    case OpKind::kRopeDgrad:
    case OpKind::kAdd: return 0;
    case OpKind::kSwiGluDgrad: return 1;
    default: return -1;
  }
}

}  // namespace ftrun
