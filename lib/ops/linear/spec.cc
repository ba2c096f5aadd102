#include "ops/linear/linear.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"
#include "ops/linear/workspace.h"

namespace ftrun {
namespace {

OpWork linear_work(const LayerGraph& graph, const Op& op) {
  return OpPass{.flops = flops_of_matmul(graph, op.in[0], op.in[1]),
                .bytes = operand_bytes(graph, op)};
}

OpWork linear_wgrad_work(const LayerGraph& graph, const Op& op) {
  return OpPass{.flops = flops_of_matmul(graph, op.in[0], op.out[0]),
                .bytes = operand_bytes(graph, op)};
}

int64_t linear_workspace(const LayerGraph& graph, const Op& op) {
  const Dims &x = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  return matmul_workspace_bytes(graph, op, x[0], w[0], x[1]);
}

int64_t linear_dgrad_workspace(const LayerGraph& graph, const Op& op) {
  const Dims &dy = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  return matmul_workspace_bytes(graph, op, dy[0], w[1], dy[1]);
}

int64_t linear_wgrad_workspace(const LayerGraph& graph, const Op& op) {
  const Dims &dy = graph.at(op.in[0]).dims, &x = graph.at(op.in[1]).dims;
  return matmul_workspace_bytes(graph, op, dy[1], x[1], dy[0]);
}

int64_t quantized_panel_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const Value& weight = graph.at(op.in[1]);
  if (!weight.quantized) return 0;
  const bool forward = op.kind == OpKind::kLinear;
  const int64_t n = weight.dims[forward ? 0 : 1], k = weight.dims[forward ? 1 : 0];
  return gpu_panel_columns(n, k) * k * dtype_bytes(weight.dtype);
}

void emit_linear_weight_gradients(BackwardBuilder& backward, const Op& op, ValueId dy, ValueId x) {
  if (op.attrs.get_or<LinearAttrs>().weight_gradient)
    backward.emit_weight_grad(OpKind::kLinearWgrad, {dy, x}, {backward.param_grad(op.in[1])});
  if (op.in.size() > 2)
    backward.emit_weight_grad(OpKind::kBiasWgrad, {dy}, {backward.param_grad(op.in[2])});
}

/// Adds the gradients of a linear operation to the lists. The operation itself adds the gradient
/// with respect to x that other operations have already computed. If each rank computes only a term
/// of that gradient, the same holds for every other linear operation of x: the terms are added
/// first, and their sum is reduced over the ranks once.
void emit_linear_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dy = backward.result_gradient(op.out[0]);
  const ValueId x = backward.backward_value(op.in[0]);
  const int64_t ranks = op.attrs.get_or<LinearAttrs>().gradient_ranks;
  const bool is_last = backward.is_first_reader(op, op.in[0]);
  if (ranks == 1) emit_linear_weight_gradients(backward, op, dy, x);
  if (backward.wants_gradient(op.in[0])) {
    const ValueId e = backward.sum_gradient_terms(op.in[0]);
    const ValueId dx = backward.add_gradient_value(op.in[0]);
    std::vector<ValueId> in{dy, op.in[1]};
    if (e >= 0) in.push_back(e);
    backward.emit_input_grad(OpKind::kLinearDgrad, std::move(in), {dx});
    backward.replace_terms(op.in[0], ranks > 1 && is_last
                                         ? backward.reduce_partial_gradient(op.in[0], dx, ranks)
                                         : dx);
  }
  if (ranks == 1) return;
  backward.emit_after_collective(
      [&backward, op, dy, x] { emit_linear_weight_gradients(backward, op, dy, x); });
  if (is_last && !backward.accepts_partial_gradients(op.in[0])) backward.emit_delayed();
}

}  // namespace

bool adds_bias(const Op& op) {
  return op.in.size() > 2 && op.attrs.get_or<LinearAttrs>().adds_bias;
}

ValueId ops::linear(GraphBuilder& g, ValueId x, ValueId weight, ValueId bias,
                    const LinearAttrs& attrs) {
  const Dims w = g.at(weight).dims;  // a copy, because adding a value may move the others
  require(g.at(x).dims[1] == w[1], "a weight has as many columns as its input");
  const ValueId y = g.add_temporary(g.at(weight).name + ".out", {g.at(x).dims[0], w[0]});
  std::vector<ValueId> in{x, weight};
  if (bias >= 0) {
    require(g.at(bias).dims == Dims{w[0]}, "a bias has an element for each row of the weight");
    in.push_back(bias);
  }
  OpAttrs given;
  if (attrs != LinearAttrs{}) given = attrs;
  g.emit(OpKind::kLinear, std::move(in), {y}, std::move(given));
  return y;
}

namespace specs {

constinit const OpSpec linear{
    .name = "linear",
    .shapes = "N,I O,I [O] -> N,O",
    .split_along = "OI",
    .work_class = WorkClass::kMatmul,
    .work = linear_work,
    .workspace = linear_workspace,
    .gpu_workspace = quantized_panel_gpu_workspace,
    .gradients = emit_linear_gradients,
};

constinit const OpSpec linear_dgrad{
    .name = "linear_dgrad",
    .shapes = "N,O O,I [N,I] -> N,I",
    .split_along = "OI",
    .in_place_input = 2,
    .work_class = WorkClass::kMatmul,
    .work = linear_work,
    .workspace = linear_dgrad_workspace,
    .gpu_workspace = quantized_panel_gpu_workspace,
};

constinit const OpSpec linear_wgrad{
    .name = "linear_wgrad",
    .shapes = "N,O N,I -> O,I",
    .split_along = "OI",
    .work_class = WorkClass::kMatmul,
    .work = linear_wgrad_work,
    .workspace = linear_wgrad_workspace,
    .gpu_workspace = workspace_of::none,
};

constinit const OpSpec bias_wgrad{
    .name = "bias_wgrad",
    .shapes = "N,O -> O",
    .split_along = "O",
    .workspace = workspace_of::partial_gradients,
    .gpu_workspace = workspace_of::gpu_partial_sums,
};

}  // namespace specs

}  // namespace ftrun
