#include "graph/cost.h"

#include <algorithm>

#include "graph/layer_graph.h"
#include "graph/op_spec.h"

namespace ftrun {

namespace flops_of {

double elements(const LayerGraph& graph, const Op& op) {
  double elements = 0;
  for (const ValueId id : op.out) elements += static_cast<double>(element_count(graph.at(id).dims));
  return elements;
}

double communication(const LayerGraph&, const Op&) {
  return 0.0;
}

}  // namespace flops_of

double product_flops(const LayerGraph& graph, ValueId x, ValueId w) {
  const double tokens = static_cast<double>(graph.at(x).dims[0]);
  return 2.0 * tokens * static_cast<double>(element_count(graph.at(w).dims));
}

double flops(const LayerGraph& graph, const Op& op) {
  return op_spec(op.kind).flops(graph, op);
}

int64_t traffic_bytes(const LayerGraph& graph, const Op& op) {
  int64_t bytes = 0;
  for (const ValueId id : op.in) bytes += graph.at(id).bytes();
  for (const ValueId id : op.out) bytes += graph.at(id).bytes();
  return bytes;
}

double op_price(const LayerGraph& graph, const Op& op) {
  return std::max(flops(graph, op), kFlopsPerByte * static_cast<double>(traffic_bytes(graph, op)));
}

}  // namespace ftrun
