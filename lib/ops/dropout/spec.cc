#include "ops/dropout/dropout.h"

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void emit_dropout_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(OpKind::kDropout, {backward.result_gradient(op.out[0])}, {dx}, op.attrs);
  backward.add_term(op.in[0], dx);
  const int64_t ranks = op.attrs.get<DropoutAttrs>().gradient_ranks;
  if (ranks == 1 || !backward.is_first_reader(op, op.in[0])) return;
  backward.replace_terms(op.in[0], backward.reduce_partial_gradient(
                                       op.in[0], backward.sum_gradient_terms(op.in[0]), ranks));
  if (!backward.accepts_partial_gradients(op.in[0])) backward.emit_delayed();
}

}  // namespace

ValueId ops::dropout(GraphBuilder& g, ValueId x, const DropoutAttrs& attrs) {
  require(attrs.probability > 0 && attrs.probability < 1 && attrs.first_column >= 0,
          "the probability of dropout lies between 0 and 1");
  const ValueId y = g.add_temporary(g.at(x).name + ".dropout", Dims(g.at(x).dims));
  g.emit(OpKind::kDropout, {x}, {y}, attrs);
  return y;
}

namespace specs {

constinit const OpSpec dropout{
    .name = "dropout",
    .shapes = "N,I -> N,I",
    .split_along = "I",
    .cheap_result = 0,
    .in_place_input = 0,
    .accepts_partial_gradients = true,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_dropout_gradients,
};

}  // namespace specs

}  // namespace ftrun
