#include "ops/scale/scale.h"

#include <cmath>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void emit_scale_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(OpKind::kScale, {backward.result_gradient(op.out[0])}, {dx}, op.attrs);
  backward.add_term(op.in[0], dx);
}

}  // namespace

ValueId ops::scale(GraphBuilder& g, ValueId x, double factor) {
  require(std::isfinite(factor), "the factor of a scale is finite");
  if (factor == 1.0) return x;
  const ValueId y = g.add_temporary(g.at(x).name + ".scaled", Dims(g.at(x).dims));
  g.emit(OpKind::kScale, {x}, {y}, ScaleAttrs{factor});
  return y;
}

namespace specs {

constinit const OpSpec scale{
    .name = "scale",
    .shapes = "S -> S",
    .split_along = "S",
    .cheap_result = 0,
    .in_place_input = 0,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_scale_gradients,
};

}  // namespace specs

}  // namespace ftrun
