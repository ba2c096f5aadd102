#pragma once

#include "graph/layer_graph.h"

namespace ftrun {

/// Returns the dtype an operation computes in: that of its first operand that is not integer.
inline DType working_dtype(const LayerGraph& graph, const Op& op) {
  for (const ValueId id : op.in)
    if (graph.at(id).dtype != DType::kI32) return graph.at(id).dtype;
  return DType::kF32;
}

}  // namespace ftrun
