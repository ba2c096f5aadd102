#pragma once

#include "graph/layer_graph.h"

namespace ftrun {

/// Returns the dtype in which an operation computes: the dtype of its first operand that is not
/// integer.
inline DType working_dtype(const LayerGraph& graph, const Op& op) {
  for (const ValueId id : op.in)
    if (graph.at(id).dtype != DType::kI32) return graph.at(id).dtype;
  return DType::kF32;
}

}  // namespace ftrun
