#pragma once

#include <cstdint>
#include <vector>

#include "graph/op.h"
#include "ops/lora/lora.h"

namespace ftrun {

class GraphBuilder;

// dora_squared_lengths
//   Magnitudes in addition to low-rank adapters (Liu et al. 2024, "DoRA"): row o of
//   w_p + scale_p b_p a_p, where a_p are the part's rows of a, gets the length m_o. Its own length
//   is a constant for the gradients. M = O_1 + O_2 + O_3; a row of zeros stays zero. The magnitudes
//   m are F32 (F64 in an F64 graph), as q is.
//   in:  w[O,I], a[J,I], b_1[O_1,r_1], [b_2], [b_3]
//   out: q[M] (F32, F64 in an F64 graph): squared lengths of the rows
// dora_scale
//   Part p of z, the linear layer's results with lora_up and without a bias, is multiplied by m_p /
//   sqrt(q_p); other columns are not.
//   in:  z[N,O], q[M], m[M], [bias[O]]
//   out: y[N,O] = z m / sqrt(q) + bias (out may be z)
// dora_scale_dgrad
//   in:  dy[N,O], q[M], m[M]
//   out: dz[N,O] = dy m / sqrt(q) (out may be dy)
// dora_scale_wgrad
//   in:  dy[N,O], z[N,O], q[M]
//   out: dm[M] = sum over N of dy z / sqrt(q)

/// DoraAttrs holds the attributes of dora_scale and its gradients: the parts of a linear layer that
/// have magnitudes.
struct DoraAttrs {
  struct ScaledColumns {
    int64_t first_column = 0;
    int64_t columns = 0;
    bool operator==(const ScaledColumns&) const = default;
  };
  std::vector<ScaledColumns> parts;
  /// Says whether the bias is added (LinearAttrs::adds_bias).
  bool adds_bias = true;
  bool operator==(const DoraAttrs&) const = default;
};

namespace ops {
/// Emits the squared lengths of the rows of W + scale B A, given by `weight`, `down`, `up` and
/// `attrs`.
ValueId dora_squared_lengths(GraphBuilder& g, ValueId weight, ValueId down,
                             const std::vector<ValueId>& up, const LoraAttrs& attrs);
/// Multiplies a linear layer's results `z`, with adapters and without bias, by `magnitudes` over
/// the lengths; then adds the bias.
ValueId dora_scale(GraphBuilder& g, ValueId z, ValueId squares, ValueId magnitudes, ValueId bias,
                   const DoraAttrs& attrs);
}  // namespace ops

}  // namespace ftrun
