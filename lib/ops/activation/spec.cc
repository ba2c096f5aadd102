#include "ops/activation/activation.h"

#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/cost.h"
#include "graph/op_parts.h"
#include "ops/activation/activation_traits.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

/// Emits the operation `kind`, which computes the gradient of the input from the gradient of the
/// result and the input.
void emit_gradient_of_kind(BackwardBuilder& backward, const Op& op, OpKind kind) {
  const ValueId dy = backward.result_gradient(op.out[0]);
  const ValueId x = backward.backward_value(op.in[0]);
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(kind, {dy, x}, {dx}, op.attrs);
  backward.add_term(op.in[0], dx);
}

/// Counts the work of an activation. A smooth one has one transcendental function for each element
/// of its argument (of a gated activation: the gate), which `elements` counts.
OpWork work_per_element(const LayerGraph& graph, const Op& op, double elements) {
  return OpPass{.flops = result_elements(graph, op),
                .transcendentals = traits_of(activation_of(op)).is_smooth ? elements : 0,
                .bytes = operand_bytes(graph, op)};
}

OpWork activation_work(const LayerGraph& graph, const Op& op) {
  return work_per_element(graph, op, result_elements(graph, op));
}

OpWork gated_activation_dgrad_work(const LayerGraph& graph, const Op& op) {
  return work_per_element(graph, op, result_elements(graph, op) / 2);
}

void emit_activation_gradients(BackwardBuilder& backward, const Op& op) {
  emit_gradient_of_kind(backward, op, OpKind::kActivationDgrad);
}

void emit_gated_activation_gradients(BackwardBuilder& backward, const Op& op) {
  emit_gradient_of_kind(backward, op, OpKind::kGatedActivationDgrad);
}

}  // namespace

ValueId ops::activation(GraphBuilder& g, ValueId x, Activation kind) {
  const ValueId y = g.add_temporary("activation.out", Dims(g.at(x).dims));
  g.emit(OpKind::kActivation, {x}, {y}, ActivationAttrs{kind});
  return y;
}

ValueId ops::gated_activation(GraphBuilder& g, ValueId gate_up, Activation kind) {
  const ValueId s =
      g.add_temporary("gated.out", {g.at(gate_up).dims[0], g.at(gate_up).dims[1] / 2});
  g.emit(OpKind::kGatedActivation, {gate_up}, {s}, ActivationAttrs{kind});
  return s;
}

namespace specs {

constinit const OpSpec activation{
    .name = "activation",
    .shapes = "N,F -> N,F",
    .split_along = "F",
    .cheap_result = 0,
    .work = activation_work,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_activation_gradients,
};

constinit const OpSpec activation_dgrad{
    .name = "activation_dgrad",
    .shapes = "N,F N,F -> N,F",
    .split_along = "F",
    .in_place_input = 1,
    .work = activation_work,
    .gpu_workspace = workspace_of::none,
};

constinit const OpSpec gated_activation{
    .name = "gated_activation",
    .shapes = "N,2F -> N,F",
    .split_along = "F",
    .cheap_result = 0,
    .work = activation_work,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_gated_activation_gradients,
};

constinit const OpSpec gated_activation_dgrad{
    .name = "gated_activation_dgrad",
    .shapes = "N,F N,2F -> N,2F",
    .split_along = "F",
    .in_place_input = 1,
    .work = gated_activation_dgrad_work,
    .gpu_workspace = workspace_of::none,
};

}  // namespace specs

}  // namespace ftrun
