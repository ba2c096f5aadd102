#include "ops/softcap/softcap.h"

#include <cmath>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void emit_softcap_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(
      OpKind::kSoftcapDgrad,
      {backward.result_gradient(op.out[0]), backward.backward_value(op.out[0])}, {dx}, op.attrs);
  backward.add_term(op.in[0], dx);
}

}  // namespace

ValueId ops::softcap(GraphBuilder& g, ValueId x, double bound) {
  require(std::isfinite(bound) && bound >= 0, "the bound of a softcap is finite and at least 0");
  if (bound == 0) return x;
  const ValueId y = g.add_temporary(g.at(x).name + ".capped", Dims(g.at(x).dims));
  g.emit(OpKind::kSoftcap, {x}, {y}, SoftcapAttrs{bound});
  return y;
}

namespace specs {

constinit const OpSpec softcap{
    .name = "softcap",
    .shapes = "S -> S",
    .in_place_input = 0,
    .work = work_of::transcendentals,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_softcap_gradients,
};

constinit const OpSpec softcap_dgrad{
    .name = "softcap_dgrad",
    .shapes = "S S -> S",
    .in_place_input = 0,
    .gpu_workspace = workspace_of::none,
};

}  // namespace specs

}  // namespace ftrun
