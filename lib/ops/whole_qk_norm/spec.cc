#include "ops/whole_qk_norm/whole_qk_norm.h"

#include <map>
#include <string>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void add_whole_qk_norm_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  const HeadAttrs& heads = op.attrs.get<WholeQkNormAttrs>().heads;
  add_head_dimensions(heads.query_heads, heads.kv_heads, heads.head_size, letters);
}

/// Emits the gradients. The dot products of a rank's own elements are summed over the ranks before
/// they are read. The squares get no gradient, because the gradient of qkv includes it.
void emit_whole_qk_norm_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dy = backward.result_gradient(op.out[0]);
  const ValueId qkv = backward.backward_value(op.in[0]);
  const ValueId rstd = backward.backward_value(op.out[1]);
  const ValueId wq = op.in[2], wk = op.in[3];
  const int64_t ranks = op.attrs.get<WholeQkNormAttrs>().ranks;
  const ValueId own = backward.add_gradient_value(op.in[1]);
  backward.emit_input_grad(OpKind::kQkDots, {dy, qkv, wq, wk}, {own}, op.attrs);
  const ValueId dots = ranks > 1 ? backward.reduce_partial_gradient(op.in[1], own, ranks) : own;
  const ValueId dwq = backward.param_grad(wq);
  backward.emit_input_grad(OpKind::kWholeQkNormWgrad, {dy, qkv, rstd},
                           {dwq, backward.param_grad(wk)}, op.attrs);
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(OpKind::kWholeQkNormDgrad, {dy, qkv, rstd, dots, wq, wk}, {dx},
                           op.attrs);
  backward.add_term(op.in[0], dx);
}

}  // namespace

ValueId ops::qk_squares(GraphBuilder& g, ValueId qkv, const WholeQkNormAttrs& attrs) {
  const ValueId squares =
      g.add_value("qk_norm.squares", g.statistics_dtype(), {g.tokens(), 2}, ValueRole::kTemp);
  g.emit(OpKind::kQkDots, {qkv, qkv}, {squares}, attrs);
  return squares;
}

ValueId ops::whole_qk_norm(GraphBuilder& g, ValueId qkv, ValueId squares, ValueId weight_q,
                           ValueId weight_k, const WholeQkNormAttrs& attrs) {
  require(g.at(weight_q).dims == Dims{attrs.query_elements()} &&
              g.at(weight_k).dims == Dims{attrs.key_elements()},
          "whole_qk_norm has a weight for each element of its heads");
  const ValueId y = g.add_temporary("qk_norm.out", g.at(qkv).dims);
  const ValueId rstd =
      g.add_value("qk_norm.rstd", g.statistics_dtype(), {g.tokens(), 2}, ValueRole::kTemp);
  g.emit(OpKind::kWholeQkNorm, {qkv, squares, weight_q, weight_k}, {y, rstd}, attrs);
  return y;
}

namespace specs {

constinit const OpSpec qk_dots{
    .name = "qk_dots",
    .shapes = "N,(H+2K)d N,(H+2K)d [Hd] [Kd] -> N,2",
    .split_along = "H",
    .add_letter_sizes = add_whole_qk_norm_letters,
    .gpu_workspace = workspace_of::none,
    .gradients = gradients_of::none,
};

constinit const OpSpec whole_qk_norm{
    .name = "whole_qk_norm",
    .shapes = "N,(H+2K)d N,2 Hd Kd -> N,(H+2K)d N,2",
    .split_along = "H",
    .add_letter_sizes = add_whole_qk_norm_letters,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_whole_qk_norm_gradients,
};

constinit const OpSpec whole_qk_norm_dgrad{
    .name = "whole_qk_norm_dgrad",
    .shapes = "N,(H+2K)d N,(H+2K)d N,2 N,2 Hd Kd -> N,(H+2K)d",
    .split_along = "H",
    .add_letter_sizes = add_whole_qk_norm_letters,
    .gpu_workspace = workspace_of::none,
};

constinit const OpSpec whole_qk_norm_wgrad{
    .name = "whole_qk_norm_wgrad",
    .shapes = "N,(H+2K)d N,(H+2K)d N,2 -> Hd Kd",
    .split_along = "H",
    .add_letter_sizes = add_whole_qk_norm_letters,
    .workspace = workspace_of::partial_gradients,
    .gpu_workspace = workspace_of::gpu_partial_sums,
};

}  // namespace specs

}  // namespace ftrun
