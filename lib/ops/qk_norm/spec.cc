#include "ops/qk_norm/qk_norm.h"

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

/// Emits the gradients. Those of the weights go to the list of input gradients, as for other norms.
void emit_qk_norm_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dy = backward.result_gradient(op.out[0]);
  const ValueId qkv = backward.backward_value(op.in[0]);
  const ValueId rstd = backward.backward_value(op.out[1]);
  const ValueId dwq = backward.param_grad(op.in[1]);
  backward.emit_input_grad(OpKind::kQkNormWgrad, {dy, qkv, rstd},
                           {dwq, backward.param_grad(op.in[2])}, op.attrs);
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(OpKind::kQkNormDgrad, {dy, qkv, rstd, op.in[1], op.in[2]}, {dx},
                           op.attrs);
  backward.add_term(op.in[0], dx);
}

}  // namespace

ValueId ops::qk_norm(GraphBuilder& g, ValueId qkv, ValueId weight_q, ValueId weight_k,
                     const HeadAttrs& heads) {
  require(
      g.at(weight_q).dims == Dims{heads.head_size} && g.at(weight_k).dims == Dims{heads.head_size},
      "the weights of qk_norm are as wide as a head");
  const ValueId y = g.add_temporary("qk_norm.out", g.at(qkv).dims);
  const ValueId rstd =
      g.add_value("qk_norm.rstd", g.statistics_dtype(),
                  {g.tokens(), heads.query_heads + heads.kv_heads}, ValueRole::kTemp);
  g.emit(OpKind::kQkNorm, {qkv, weight_q, weight_k}, {y, rstd}, heads);
  return y;
}

namespace specs {

constinit const OpSpec qk_norm{
    .name = "qk_norm",
    .shapes = "N,(H+2K)d d d -> N,(H+2K)d N,H+K",
    .split_along = "H",
    .add_letter_sizes = add_letters_of_heads,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_qk_norm_gradients,
};

constinit const OpSpec qk_norm_dgrad{
    .name = "qk_norm_dgrad",
    .shapes = "N,(H+2K)d N,(H+2K)d N,H+K d d -> N,(H+2K)d",
    .split_along = "H",
    .add_letter_sizes = add_letters_of_heads,
    .gpu_workspace = workspace_of::none,
};

constinit const OpSpec qk_norm_wgrad{
    .name = "qk_norm_wgrad",
    .shapes = "N,(H+2K)d N,(H+2K)d N,H+K -> d d",
    .split_along = "H",
    .add_letter_sizes = add_letters_of_heads,
    .workspace = workspace_of::partial_gradients,
    .gpu_workspace = workspace_of::gpu_partial_sums,
};

}  // namespace specs

}  // namespace ftrun
