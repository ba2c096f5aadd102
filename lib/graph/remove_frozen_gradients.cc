#include "graph/remove_frozen_gradients.h"

#include <algorithm>
#include <vector>

#include "graph/check_graph.h"
#include "graph/op_spec.h"

namespace ftrun {
namespace {

/// Returns whether an operation uses a value. An operation that only updates it in place does not.
bool uses_value(const Op& op, ValueId id) {
  return std::count(op.in.begin(), op.in.end(), id) > 0 &&
         std::count(op.out.begin(), op.out.end(), id) == 0;
}

bool is_used(const std::vector<const std::vector<Op>*>& lists, ValueId id) {
  return std::any_of(lists.begin(), lists.end(), [&](const std::vector<Op>* list) {
    return std::any_of(list->begin(), list->end(),
                       [&](const Op& op) { return uses_value(op, id); });
  });
}

bool is_layer_result(ValueRole role) {
  return role == ValueRole::kOutput || role == ValueRole::kInputGrad ||
         role == ValueRole::kParamGrad;
}

/// Removes operations without a needed result from the lists, which run one after another.
void remove_unused(const LayerGraph& graph, const std::vector<std::vector<Op>*>& lists) {
  const std::vector<const std::vector<Op>*> readers(lists.begin(), lists.end());
  const auto is_unused = [&](const Op& op) {
    return std::none_of(op.out.begin(), op.out.end(), [&](ValueId id) {
      return is_layer_result(graph.at(id).role) || is_used(readers, id);
    });
  };
  bool removed = true;
  while (removed) {
    removed = false;
    for (std::vector<Op>* list : lists) removed = std::erase_if(*list, is_unused) > 0 || removed;
  }
}

/// Removes gradients of frozen parameters from operations of the forward list that compute
/// gradients, as the head does. Such a gradient stays if a gradient of a trained parameter follows
/// it among the results.
void remove_from_forward(LayerGraph& graph) {
  for (Op& op : graph.forward) {
    const int gradient = op_spec(op.kind).parameter_gradient;
    if (gradient < 0) continue;
    while (op.out.size() > static_cast<size_t>(gradient) &&
           graph.at(op.out.back()).role == ValueRole::kTemp)
      op.out.pop_back();
  }
}

void remove_input_gradient(LayerGraph& graph) {
  const ValueId gradient = graph.find(ValueRole::kInputGrad, Port::kHidden);
  if (gradient < 0) return;
  for (const ValueId input : graph.values_with_role(ValueRole::kInput))
    if (graph.at(input).grad == gradient) graph.values[static_cast<size_t>(input)].grad = -1;
  Value& value = graph.values[static_cast<size_t>(gradient)];
  value.role = ValueRole::kTemp;
  value.port = Port::kNone;
}

}  // namespace

LayerGraph remove_frozen_gradients(LayerGraph graph, const std::set<ValueId>& frozen,
                                   bool needs_input_gradient) {
  for (const ValueId param : frozen) {
    Value& value = graph.values[static_cast<size_t>(param)];
    if (value.grad < 0) continue;
    graph.values[static_cast<size_t>(value.grad)].role = ValueRole::kTemp;
    value.grad = -1;
  }
  if (!needs_input_gradient) remove_input_gradient(graph);
  remove_from_forward(graph);
  remove_unused(graph, {&graph.backward});
  remove_unused(graph, {&graph.input_grad, &graph.weight_grad});
  for (size_t id = 0; id < graph.values.size(); ++id) {
    ValueRole& role = graph.values[id].role;
    const auto value = static_cast<ValueId>(id);
    const bool kept_for_nobody =
        (role == ValueRole::kSaved && !is_used({&graph.input_grad, &graph.weight_grad}, value)) ||
        (role == ValueRole::kDeferred && !is_used({&graph.weight_grad}, value));
    if (kept_for_nobody) role = ValueRole::kTemp;
  }
  check_graph(graph);
  return graph;
}

}  // namespace ftrun
