#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"

namespace ftrun {

struct LayerGraph;

/// ScratchPlan is the storage of one list: where each of its temporaries and workspaces lies in a
/// scratch buffer.
struct ScratchPlan {
  /// The byte offset of each value; -1 for values that do not live in scratch.
  std::vector<int64_t> offset;
  int64_t bytes = 0;
};
/// Places `list`'s kTemp, kWorkspace and kDeferred values, overlapping where lifetimes allow;
/// 64-byte aligned. A collective may run at the same time as the operations that follow it, until
/// one of them reads its result, so until then its operands share no memory with other values.
/// kDeferred values that another list writes or reads are left out (plan_deferred()): none in
/// `backward`, all in `input_grad` and in `weight_grad`.
ScratchPlan plan_scratch(const LayerGraph& graph, std::span<const Op> list);

/// SavedValueReader selects, of the values that forward leaves for backward, those of one reader.
enum class SavedValueReader : uint8_t {
  kBackward,    // all of them
  kInputGrad,   // those that `weight_grad` does not read
  kWeightGrad,  // those that `weight_grad` reads, even if `input_grad` also reads them
};

/// Places the values that forward leaves for backward in one buffer; 64-byte aligned.
ScratchPlan plan_saved(const LayerGraph& graph,
                       SavedValueReader which = SavedValueReader::kBackward);

/// Places the values that `input_grad` leaves for `weight_grad` in one buffer; 64-byte aligned. The
/// weight gradients also read kSaved values, the values given to the layer, and gradients at its
/// borders (kOutputGrad, kInputGrad), so all these live until the weight gradients have run.
ScratchPlan plan_deferred(const LayerGraph& graph);

}  // namespace ftrun
