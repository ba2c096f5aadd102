#pragma once

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// rms_norm
//   y = x rstd (o + w), rstd = 1 / sqrt(mean(x^2) + epsilon); o is attrs.weight_offset.
//   in:  x[N,D], w[D]
//   out: y[N,D], rstd F32[N]
// add_rms_norm
//   in:  x[N,D], r[N,D], w[D]
//   out: sum=x+r [N,D], y[N,D], rstd F32[N]
// rms_norm_dgrad
//   in:  dy[N,D], x[N,D], rstd F32[N], w[D], [e[N,D]]
//   out: dx[N,D] (= gradient through the norm, + e)
// rms_norm_wgrad
//   in:  dy[N,D], x[N,D], rstd F32[N]
//   out: dw[D]
// layer_norm
//   Ba et al. 2016: y = xhat [* w [+ b]], xhat = (x - mean) rstd, rstd = 1 / sqrt(var + epsilon).
//   in:  x[N,D], [w[D]], [b[D]]
//   out: y[N,D], mean F32[N], rstd F32[N]
// layer_norm_dgrad
//   in:  dy[N,D], x[N,D], mean F32[N], rstd F32[N], [w[D]], [e[N,D]]
//   out: dx[N,D] (= gradient through the norm, + e)
// layer_norm_wgrad
//   in:  dy[N,D], x[N,D], mean F32[N], rstd F32[N]
//   out: dw[D], [db[D]]

/// NormAttrs holds the attributes of RMS norms and layer norms.
struct NormAttrs {
  double epsilon = 1e-5;
  /// The number that is added to the weights of an RMS norm: 1 if files store the weight minus 1.
  /// Layer norms ignore it.
  double weight_offset = 0;
  bool operator==(const NormAttrs&) const = default;
};

namespace ops {
ValueId rms_norm(GraphBuilder& g, ValueId x, ValueId weight, const NormAttrs& attrs);
struct SumAndNormValues {
  ValueId sum;
  ValueId norm;
};
SumAndNormValues add_rms_norm(GraphBuilder& g, ValueId x, ValueId r, ValueId weight,
                              const NormAttrs& attrs);
/// Emits a layer_norm and returns y. weight[D] and bias[D] may be -1 for none; a bias without a
/// weight is refused.
ValueId layer_norm(GraphBuilder& g, ValueId x, ValueId weight, ValueId bias, double epsilon);
}  // namespace ops

}  // namespace ftrun
