#include "ops/swiglu/swiglu.h"

#include "graph/builder.h"
#include "graph/derivation.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void swiglu_gradients(Derivation& d, const Op& op) {
  const ValueId ds = d.result_gradient(op.out[0]);
  const ValueId gu = d.needed(op.in[0]);
  const ValueId dgu = d.new_gradient(op.in[0]);
  d.emit_input_grad(OpKind::kSwiGluDgrad, {ds, gu}, {dgu});
  d.add_term(op.in[0], dgu);
}

}  // namespace

ValueId ops::swiglu(GraphBuilder& g, ValueId gate_up) {
  const ValueId s = g.temp("swiglu.out", {g.at(gate_up).dims[0], g.at(gate_up).dims[1] / 2});
  g.emit(OpKind::kSwiGlu, {gate_up}, {s});
  return s;
}

namespace specs {

constinit const OpSpec swiglu{
    .name = "swiglu",
    .shapes = "N,G -> N,F",
    .shared_by = "F",
    .cheap_result = 0,
    .gpu_workspace = workspace_of::none,
    .gradients = swiglu_gradients,
};

constinit const OpSpec swiglu_dgrad{
    .name = "swiglu_dgrad",
    .shapes = "N,F N,G -> N,G",
    .shared_by = "F",
    .in_place = 1,
    .gpu_workspace = workspace_of::none,
};

}  // namespace specs

}  // namespace ftrun
