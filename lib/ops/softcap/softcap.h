#pragma once

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// softcap
//   Applies the softcap of a model's config to logits. (The loss applies it itself.)
//   in:  x
//   out: y = c tanh(x / c), same shape (out may be x)
// softcap_dgrad
//   in:  dy, y
//   out: dx = dy (1 - (y / c)^2), same shape (out may be dy)

struct SoftcapAttrs {
  /// The bound c, which is positive.
  double bound = 1.0;
  bool operator==(const SoftcapAttrs&) const = default;
};

namespace ops {
/// Bounds `x`; returns `x` itself for a bound of 0.
ValueId softcap(GraphBuilder& g, ValueId x, double bound);
}  // namespace ops

}  // namespace ftrun
