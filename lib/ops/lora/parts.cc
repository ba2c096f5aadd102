#include "ops/lora/lora.h"

#include <algorithm>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

/// Returns b_p, or its gradient.
ValueId up_matrix(const Op& op, size_t part) {
  switch (op.kind) {
    case OpKind::kLoraUp:
    case OpKind::kDoraSquaredLengths:
      return op.in.at(2 + part);
    case OpKind::kLoraUpDgrad:
      return op.in.at(1 + part);
    case OpKind::kLoraUpWgrad:
      return op.out.at(part);
    default:
      bug("an operation of low-rank adapters");
  }
}

}  // namespace

std::vector<LoraPart> lora_parts(const LayerGraph& graph, const Op& op) {
  std::vector<LoraPart> parts;
  for (const LoraAttrs::AdaptedColumns& part : op.attrs.get<LoraAttrs>().parts) {
    const Dims& b = graph.at(up_matrix(op, parts.size())).dims;
    parts.push_back({part.first_column, b[0], total_lora_rank(parts), b[1], part.scale});
  }
  return parts;
}

int64_t max_columns(const std::vector<LoraPart>& parts) {
  int64_t largest = 0;
  for (const LoraPart& part : parts) largest = std::max(largest, part.columns);
  return largest;
}

int64_t total_lora_rank(const std::vector<LoraPart>& parts) {
  return parts.empty() ? 0 : parts.back().first_h_column + parts.back().rank;
}

}  // namespace ftrun
