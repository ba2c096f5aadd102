#pragma once

#include "graph/op.h"
#include "ops/heads.h"

namespace ftrun {

class GraphBuilder;

// RMS norms over all query heads of a token together, and over all its key heads (OLMo Team 2024,
// section 2). If each tensor-parallel rank has some of the heads, the ranks sum the squares between
// the first operation and the second, and in backward the dots of its gradient.
//
// qk_dots
//   in:  a[N,(H+2K)d], b[N,(H+2K)d], [wq[Hd], wk[Kd]]
//   out: dots F32[N,2]: the sum of a b [w] over the elements of q, and over those of k
// whole_qk_norm
//   y = x rstd w, rstd = 1 / sqrt(squares / elements + epsilon) of all ranks' elements; v is
//   copied.
//   in:  qkv[N,(H+2K)d], squares F32[N,2], wq[Hd], wk[Kd]
//   out: y[N,(H+2K)d], rstd F32[N,2]
// whole_qk_norm_dgrad
//   dx = rstd (dy w - x rstd^2 dots / elements), where dots are those of dy and qkv with weights.
//   in:  dy[N,(H+2K)d], qkv[N,(H+2K)d], rstd F32[N,2], dots F32[N,2], wq[Hd], wk[Kd]
//   out: dqkv[N,(H+2K)d]
// whole_qk_norm_wgrad
//   in:  dy[N,(H+2K)d], qkv[N,(H+2K)d], rstd F32[N,2]
//   out: dwq[Hd], dwk[Kd]

/// WholeQkNormAttrs holds the attributes of the operations of this header.
struct WholeQkNormAttrs {
  /// The heads of one rank. Their epsilon is the norm's; their weight_offset is not used.
  HeadAttrs heads;
  /// The number of tensor-parallel ranks, which all have the same number of heads. A head of which
  /// several ranks have copies counts once for each copy.
  int64_t ranks = 1;
  bool operator==(const WholeQkNormAttrs&) const = default;

  int64_t query_elements() const { return heads.query_heads * heads.head_size; }
  int64_t key_elements() const { return heads.kv_heads * heads.head_size; }
};

namespace ops {
/// Sums the squares of this rank's queries and keys.
ValueId qk_squares(GraphBuilder& g, ValueId qkv, const WholeQkNormAttrs& attrs);
/// Normalizes queries and keys; `squares` holds the sums over all ranks.
ValueId whole_qk_norm(GraphBuilder& g, ValueId qkv, ValueId squares, ValueId weight_q,
                      ValueId weight_k, const WholeQkNormAttrs& attrs);
}  // namespace ops

}  // namespace ftrun
