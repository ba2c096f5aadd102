#pragma once

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// swiglu
//   in:  gu[N,2F]: gate, then up
//   out: s[N,F] = silu(gate) * up
// swiglu_dgrad
//   in:  ds[N,F], gu[N,2F]
//   out: dgu[N,2F] (out may be gu)

namespace ops {
ValueId swiglu(GraphBuilder& g, ValueId gate_up);
}  // namespace ops

}  // namespace ftrun
