#include "ops/head_norm/head_norm.h"

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

/// Emits the gradients. Those of the weights go to the list of input gradients, as for other norms.
void emit_head_norm_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dy = backward.result_gradient(op.out[0]);
  const ValueId qkv = backward.backward_value(op.in[0]);
  const ValueId mean = backward.backward_value(op.out[1]),
                rstd = backward.backward_value(op.out[2]);
  const ValueId dwq = backward.param_grad(op.in[1]);
  backward.emit_input_grad(OpKind::kHeadNormWgrad, {dy, qkv, mean, rstd},
                           {dwq, backward.param_grad(op.in[2])}, op.attrs);
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(OpKind::kHeadNormDgrad, {dy, qkv, mean, rstd, op.in[1], op.in[2]}, {dx},
                           op.attrs);
  backward.add_term(op.in[0], dx);
}

}  // namespace

ValueId ops::head_norm(GraphBuilder& g, ValueId qkv, ValueId weight_q, ValueId weight_k,
                       const HeadAttrs& heads) {
  require(g.at(weight_q).dims == Dims{heads.query_heads * heads.head_size} &&
              g.at(weight_k).dims == Dims{heads.kv_heads * heads.head_size},
          "head_norm has a weight for each element of its heads");
  const ValueId y = g.add_temporary("head_norm.out", g.at(qkv).dims);
  const Dims statistic{g.tokens(), heads.query_heads + heads.kv_heads};
  const ValueId mean =
      g.add_value("head_norm.mean", g.statistics_dtype(), statistic, ValueRole::kTemp);
  const ValueId rstd =
      g.add_value("head_norm.rstd", g.statistics_dtype(), statistic, ValueRole::kTemp);
  g.emit(OpKind::kHeadNorm, {qkv, weight_q, weight_k}, {y, mean, rstd}, heads);
  return y;
}

namespace specs {

constinit const OpSpec head_norm{
    .name = "head_norm",
    .shapes = "N,(H+2K)d Hd Kd -> N,(H+2K)d N,H+K N,H+K",
    .split_along = "H",
    .add_letter_sizes = add_letters_of_heads,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_head_norm_gradients,
};

constinit const OpSpec head_norm_dgrad{
    .name = "head_norm_dgrad",
    .shapes = "N,(H+2K)d N,(H+2K)d N,H+K N,H+K Hd Kd -> N,(H+2K)d",
    .split_along = "H",
    .add_letter_sizes = add_letters_of_heads,
    .gpu_workspace = workspace_of::none,
};

constinit const OpSpec head_norm_wgrad{
    .name = "head_norm_wgrad",
    .shapes = "N,(H+2K)d N,(H+2K)d N,H+K N,H+K -> Hd Kd",
    .split_along = "H",
    .add_letter_sizes = add_letters_of_heads,
    .workspace = workspace_of::partial_gradients,
    .gpu_workspace = workspace_of::gpu_partial_sums,
};

}  // namespace specs

}  // namespace ftrun
