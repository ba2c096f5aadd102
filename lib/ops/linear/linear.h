#pragma once

#include <cstdint>

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// linear
//   in:  x[N,I], w[O,I], [b[O]]
//   out: y[N,O] = x w^T + b
// linear_dgrad
//   in:  dy[N,O], w[O,I], [e[N,I]]
//   out: dx[N,I] = dy w [+ e] (out may be e)
// linear_wgrad
//   in:  dy[N,O], x[N,I]
//   out: dw[O,I] = dy^T x
// bias_wgrad
//   in:  dy[N,O]
//   out: db[O] = sum over N

/// LinearAttrs holds the attributes of a linear operation of a tensor-parallel layer; those that do
/// not depend on other ranks have NoAttrs.
struct LinearAttrs {
  /// The number of ranks that divide the rows of w (column parallelism of the transposed
  /// multiplication): each rank computes a partial gradient with respect to x, which is summed over
  /// these ranks. 1: it is the whole gradient.
  int64_t gradient_ranks = 1;
  /// Says whether this rank adds b. False: b is given and gets its gradient, but another rank adds
  /// it, because the results are summed.
  bool adds_bias = true;
  /// Says whether the weight w gets a gradient from this operation. False: it gets none, because
  /// another linear operation of the layer has the same weight.
  bool weight_gradient = true;
  bool operator==(const LinearAttrs&) const = default;
};

/// Returns whether a linear adds the bias that it is given.
bool adds_bias(const Op& op);

namespace ops {
ValueId linear(GraphBuilder& g, ValueId x, ValueId weight, ValueId bias = -1,
               const LinearAttrs& attrs = {});
}  // namespace ops

}  // namespace ftrun
