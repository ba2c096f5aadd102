#pragma once

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// scale
//   The operation is its own gradient.
//   in:  x
//   out: y = factor x, same shape (out may be x)

struct ScaleAttrs {
  double factor = 1.0;
  bool operator==(const ScaleAttrs&) const = default;
};

namespace ops {
/// Multiplies `x` by a factor; returns `x` itself for a factor of 1.
ValueId scale(GraphBuilder& g, ValueId x, double factor);
}  // namespace ops

}  // namespace ftrun
