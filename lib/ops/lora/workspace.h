#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;

/// LoraWorkspace holds byte offsets in the scratch of lora_up and its gradients; the panels of
/// their multiplications begin at 0.
struct LoraWorkspace {
  /// The offset of [N,J] in the dtype of h: h times the scale of each part. -1 for lora_up_dgrad,
  /// which computes it in place.
  int64_t scaled = -1;
  int64_t bytes = 0;
};
LoraWorkspace lora_workspace(const LayerGraph& graph, const Op& op);

}  // namespace ftrun
