#pragma once

#include "graph/op.h"
#include "ops/heads.h"

namespace ftrun {

class GraphBuilder;

// qk_norm
//   RMS norm over each head's d elements of q and k; v is copied.
//   in:  qkv[N,(H+2K)d], wq[d], wk[d]
//   out: y[N,(H+2K)d], rstd F32[N,H+K]
// qk_norm_dgrad
//   in:  dy[N,(H+2K)d], qkv[N,(H+2K)d], rstd F32[N,H+K], wq[d], wk[d]
//   out: dqkv[N,(H+2K)d]
// qk_norm_wgrad
//   in:  dy[N,(H+2K)d], qkv[N,(H+2K)d], rstd F32[N,H+K]
//   out: dwq[d], dwk[d]

namespace ops {
ValueId qk_norm(GraphBuilder& g, ValueId qkv, ValueId weight_q, ValueId weight_k,
                const HeadAttrs& heads);
}  // namespace ops

}  // namespace ftrun
