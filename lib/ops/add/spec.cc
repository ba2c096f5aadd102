#include "ops/add/add.h"

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void emit_add_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dy = backward.result_gradient(op.out[0]);
  backward.add_term(op.in[0], dy);
  backward.add_term(op.in[1], dy);
}

}  // namespace

Op add_op(ValueId a, ValueId b, ValueId sum) {
  return {OpKind::kAdd, {a, b}, {sum}, {}, -1};
}

ValueId ops::add(GraphBuilder& g, ValueId a, ValueId b) {
  require(g.at(a).dims == g.at(b).dims, "the operands of an addition have one shape");
  const ValueId sum = g.add_temporary("sum", g.at(a).dims);
  g.emit(OpKind::kAdd, {a, b}, {sum});
  return sum;
}

namespace specs {

constinit const OpSpec add{
    .name = "add",
    .shapes = "S S -> S",
    .split_along = "S",
    .in_place_input = 0,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_add_gradients,
};

}  // namespace specs

}  // namespace ftrun
