#pragma once

#include "graph/op.h"
#include "ops/heads.h"

namespace ftrun {

class GraphBuilder;

// head_norm
//   Layer norms (Ba et al. 2016) over each head's d elements of q and k, without biases; each head
//   has weights of its own. v is copied.
//   in:  qkv[N,(H+2K)d], wq[Hd], wk[Kd]
//   out: y[N,(H+2K)d], mean F32[N,H+K], rstd F32[N,H+K]
// head_norm_dgrad
//   in:  dy[N,(H+2K)d], qkv[N,(H+2K)d], mean F32[N,H+K], rstd F32[N,H+K], wq[Hd], wk[Kd]
//   out: dqkv[N,(H+2K)d]
// head_norm_wgrad
//   in:  dy[N,(H+2K)d], qkv[N,(H+2K)d], mean F32[N,H+K], rstd F32[N,H+K]
//   out: dwq[Hd], dwk[Kd]

namespace ops {
/// Adds a head_norm to the list and returns y. `weight_q` [Hd] and `weight_k` [Kd] hold the weights
/// of the heads, one head after the other.
ValueId head_norm(GraphBuilder& g, ValueId qkv, ValueId weight_q, ValueId weight_k,
                  const HeadAttrs& heads);
}  // namespace ops

}  // namespace ftrun
