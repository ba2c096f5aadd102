#include "ops/norm/norm.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

/// Adds the gradients of a norm to the lists. The norm's own kernel adds `e`, the gradient that x
/// already has from other operations. The gradient of the weight goes to the list of input
/// gradients: it is cheap, and deferring it would keep dy, which nothing else reads.
void emit_norm_gradients(BackwardBuilder& backward, const Op& op, ValueId x, ValueId y,
                         ValueId rstd, ValueId weight) {
  const ValueId dy = backward.result_gradient(y);
  const ValueId e = backward.sum_gradient_terms(x);
  const ValueId x_saved = backward.backward_value(x);
  const ValueId rstd_saved = backward.backward_value(rstd);
  backward.emit_input_grad(OpKind::kRmsNormWgrad, {dy, x_saved, rstd_saved},
                           {backward.param_grad(weight)});
  const ValueId dx = backward.add_gradient_value(x);
  std::vector<ValueId> in{dy, x_saved, rstd_saved, weight};
  if (e >= 0) in.push_back(e);
  backward.emit_input_grad(OpKind::kRmsNormDgrad, std::move(in), {dx}, op.attrs);
  backward.replace_terms(x, dx);
}

void emit_rms_norm_gradients(BackwardBuilder& backward, const Op& op) {
  emit_norm_gradients(backward, op, op.in[0], op.out[0], op.out[1], op.in[1]);
}

void emit_add_rms_norm_gradients(BackwardBuilder& backward, const Op& op) {
  emit_norm_gradients(backward, op, op.out[0], op.out[1], op.out[2], op.in[2]);
  const ValueId dsum = backward.sum_gradient_terms(op.out[0]);
  backward.add_term(op.in[0], dsum);
  backward.add_term(op.in[1], dsum);
}

/// Derives the gradients of a layer norm as norm_gradients() does. Without a weight, whose operand
/// would precede `e`, the term `e` is added to the gradient separately.
void emit_layer_norm_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId x = op.in[0];
  const bool has_weight = op.in.size() > 1;
  const ValueId dy = backward.result_gradient(op.out[0]);
  const ValueId e = has_weight ? backward.sum_gradient_terms(x) : -1;
  std::vector<ValueId> in{dy, backward.backward_value(x), backward.backward_value(op.out[1]),
                          backward.backward_value(op.out[2])};
  if (has_weight) {
    std::vector<ValueId> out{backward.param_grad(op.in[1])};
    if (op.in.size() > 2) out.push_back(backward.param_grad(op.in[2]));
    backward.emit_input_grad(OpKind::kLayerNormWgrad, in, std::move(out));
    in.push_back(op.in[1]);
  }
  const ValueId dx = backward.add_gradient_value(x);
  if (e >= 0) in.push_back(e);
  backward.emit_input_grad(OpKind::kLayerNormDgrad, std::move(in), {dx});
  if (has_weight)
    backward.replace_terms(x, dx);
  else
    backward.add_term(x, dx);
}

/// Counts the partial sums of the weight and of the bias, which lie side by side.
int64_t layer_norm_gpu_partial_sums(const LayerGraph& graph, const Op& op) {
  return static_cast<int64_t>(op.out.size()) * workspace_of::gpu_partial_sums(graph, op);
}

/// Makes the operation that recomputes the norm of a residual sum from the sum.
Op norm_of_sum(const Op& op) {
  return {OpKind::kRmsNorm, {op.out[0], op.in[2]}, {op.out[1], op.out[2]}, op.attrs, -1};
}

}  // namespace

ValueId ops::rms_norm(GraphBuilder& g, ValueId x, ValueId weight, const NormAttrs& attrs) {
  require(g.at(x).dims[1] == g.at(weight).dims[0],
          "the weight of rms_norm is as wide as its input");
  const ValueId y = g.add_temporary(g.at(weight).name + ".out", g.at(x).dims);
  const ValueId rstd = g.add_value(g.at(weight).name + ".rstd", g.statistics_dtype(),
                                   {g.at(x).dims[0]}, ValueRole::kTemp);
  g.emit(OpKind::kRmsNorm, {x, weight}, {y, rstd}, attrs);
  return y;
}

ops::SumAndNormValues ops::add_rms_norm(GraphBuilder& g, ValueId x, ValueId r, ValueId weight,
                                        const NormAttrs& attrs) {
  require(g.at(x).dims == g.at(r).dims, "the operands of add_rms_norm have one shape");
  require(g.at(x).dims[1] == g.at(weight).dims[0],
          "the weight of add_rms_norm is as wide as its input");
  const ValueId sum = g.add_temporary(g.at(weight).name + ".sum", g.at(x).dims);
  const ValueId y = g.add_temporary(g.at(weight).name + ".out", g.at(x).dims);
  const ValueId rstd = g.add_value(g.at(weight).name + ".rstd", g.statistics_dtype(),
                                   {g.at(x).dims[0]}, ValueRole::kTemp);
  g.emit(OpKind::kAddRmsNorm, {x, r, weight}, {sum, y, rstd}, attrs);
  return {sum, y};
}

ValueId ops::layer_norm(GraphBuilder& g, ValueId x, ValueId weight, ValueId bias, double epsilon) {
  const int64_t width = g.at(x).dims[1];
  require(weight >= 0 || bias < 0, "layer_norm with a bias has a weight");
  std::vector<ValueId> in{x};
  for (const ValueId param : {weight, bias}) {
    if (param < 0) continue;
    require(g.at(param).dims == Dims{width},
            "the parameters of layer_norm are as wide as its input");
    in.push_back(param);
  }
  const std::string name = weight >= 0 ? g.at(weight).name : g.at(x).name + ".norm";
  const Dims dims = g.at(x).dims;  // a copy, because adding values may move the others
  const ValueId y = g.add_temporary(name + ".out", dims);
  const ValueId mean =
      g.add_value(name + ".mean", g.statistics_dtype(), {dims[0]}, ValueRole::kTemp);
  const ValueId rstd =
      g.add_value(name + ".rstd", g.statistics_dtype(), {dims[0]}, ValueRole::kTemp);
  g.emit(OpKind::kLayerNorm, std::move(in), {y, mean, rstd}, NormAttrs{epsilon});
  return y;
}

namespace specs {

constinit const OpSpec rms_norm{
    .name = "rms_norm",
    .shapes = "N,D D -> N,D N",
    .split_along = "N",
    .cheap_result = 0,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_rms_norm_gradients,
};

constinit const OpSpec add_rms_norm{
    .name = "add_rms_norm",
    .shapes = "N,D N,D D -> N,D N,D N",
    .split_along = "N",
    .cheap_result = 1,
    .from_first_result = norm_of_sum,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_add_rms_norm_gradients,
};

constinit const OpSpec rms_norm_dgrad{
    .name = "rms_norm_dgrad",
    .shapes = "N,D N,D N D [N,D] -> N,D",
    .split_along = "N",
    .gpu_workspace = workspace_of::none,
};

constinit const OpSpec rms_norm_wgrad{
    .name = "rms_norm_wgrad",
    .shapes = "N,D N,D N -> D",
    .split_along = "N",
    .gpu_pair = OpKind::kRmsNormDgrad,
    .workspace = workspace_of::partial_gradients,
    .gpu_workspace = workspace_of::gpu_partial_sums,
};

constinit const OpSpec layer_norm{
    .name = "layer_norm",
    .shapes = "N,D [D] [D] -> N,D N N",
    .split_along = "N",
    .cheap_result = 0,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_layer_norm_gradients,
};

constinit const OpSpec layer_norm_dgrad{
    .name = "layer_norm_dgrad",
    .shapes = "N,D N,D N N [D] [N,D] -> N,D",
    .split_along = "N",
    .gpu_workspace = workspace_of::none,
};

constinit const OpSpec layer_norm_wgrad{
    .name = "layer_norm_wgrad",
    .shapes = "N,D N,D N N -> D [D]",
    .split_along = "N",
    .workspace = workspace_of::partial_gradients,
    .gpu_workspace = layer_norm_gpu_partial_sums,
};

}  // namespace specs

}  // namespace ftrun
