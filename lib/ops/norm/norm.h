#pragma once

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// rms_norm
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

struct NormAttrs {
  double epsilon = 1e-5;
  bool operator==(const NormAttrs&) const = default;
};

namespace ops {
ValueId rms_norm(GraphBuilder& g, ValueId x, ValueId weight, double epsilon);
struct SumAndNorm {
  ValueId sum;
  ValueId norm;
};
SumAndNorm add_rms_norm(GraphBuilder& g, ValueId x, ValueId r, ValueId weight, double epsilon);
}  // namespace ops

}  // namespace ftrun
