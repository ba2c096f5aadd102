#include "graph/cost.h"

#include <algorithm>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "graph/op_spec.h"

namespace ftrun {

namespace work_of {

OpWork elements(const LayerGraph& graph, const Op& op) {
  return OpPass{.flops = result_elements(graph, op), .bytes = operand_bytes(graph, op)};
}

OpWork transcendentals(const LayerGraph& graph, const Op& op) {
  const double elements = result_elements(graph, op);
  return OpPass{.flops = elements, .transcendentals = elements, .bytes = operand_bytes(graph, op)};
}

OpWork communication(const LayerGraph& graph, const Op& op) {
  return OpPass{.bytes = operand_bytes(graph, op)};
}

}  // namespace work_of

OpWork::OpWork(std::initializer_list<OpPass> passes) {
  for (const OpPass& pass : passes) add(pass);
}

void OpWork::add(const OpPass& pass) {
  require(count_ < kMaxPasses, "an operation has at most kMaxPasses passes");
  passes_[count_++] = pass;
}

OpPass OpWork::total() const {
  OpPass sum;
  for (const OpPass& pass : *this) {
    sum.flops += pass.flops;
    sum.transcendentals += pass.transcendentals;
    sum.bytes += pass.bytes;
  }
  return sum;
}

OpWork op_work(const LayerGraph& graph, const Op& op) {
  return op_spec(op.kind).work(graph, op);
}

double op_flops(const LayerGraph& graph, const Op& op) {
  return op_work(graph, op).total().flops;
}

double traffic_bytes(const LayerGraph& graph, const Op& op) {
  return op_work(graph, op).total().bytes;
}

double flops_of_matmul(const LayerGraph& graph, ValueId x, ValueId w) {
  const double tokens = static_cast<double>(graph.at(x).dims[0]);
  return 2.0 * tokens * static_cast<double>(element_count(graph.at(w).dims));
}

double operand_bytes(const LayerGraph& graph, const Op& op) {
  int64_t bytes = 0;
  for (const ValueId id : op.in) bytes += graph.at(id).bytes();
  for (const ValueId id : op.out) bytes += graph.at(id).bytes();
  return static_cast<double>(bytes);
}

double result_elements(const LayerGraph& graph, const Op& op) {
  double elements = 0;
  for (const ValueId id : op.out) elements += static_cast<double>(element_count(graph.at(id).dims));
  return elements;
}

double op_cost(const LayerGraph& graph, const Op& op) {
  double cost = 0;
  for (const OpPass& pass : op_work(graph, op)) {
    const double arithmetic = pass.flops + kFlopsPerTranscendental * pass.transcendentals;
    cost += std::max(arithmetic, kFlopsPerByte * pass.bytes);
  }
  return cost;
}

double op_list_cost(const LayerGraph& graph, std::span<const Op> list) {
  double cost = 0;
  for (const Op& op : list) cost += op_cost(graph, op);
  return cost;
}

}  // namespace ftrun
