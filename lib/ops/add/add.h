#pragma once

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// add
//   in:  a, b (same shape)
//   out: a+b (out may be a)

namespace ops {
ValueId add(GraphBuilder& g, ValueId a, ValueId b);
}  // namespace ops

}  // namespace ftrun
