#pragma once

#include <cstdint>

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// attention
//   Causal softmax attention inside each sequence. Token t attends to u with max(starts[t],
//   t-window+1) <= u <= t, all indices inside its sequence of T tokens, along which starts never
//   falls. Query head h uses key/value head h*K/H.
//   With a softcap c scores are c tanh(scaled score / c).
//   in:  qkv[N,(H+2K)d], starts I32[N]
//   out: a[N,H*d], lse F32[H,N] (log-sum-exp of scaled scores)
// attention_dgrad
//   in:  da[N,H*d], qkv[N,(H+2K)d], a[N,H*d], lse F32[H,N], starts I32[N]
//   out: dqkv[N,(H+2K)d]

/// AttentionAttrs holds the attributes of attention and of its gradient.
struct AttentionAttrs {
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  /// The number of tokens of a sequence, T; N is a multiple of it.
  int64_t sequence_length = 0;
  /// The factor of the scores, usually 1/sqrt(d).
  double scale = 1.0;
  /// The sliding window in tokens; 0 = none.
  int64_t window = 0;
  /// The bound on the scores (Gemma Team 2024, section 2); 0 = none.
  double softcap = 0;
  bool operator==(const AttentionAttrs&) const = default;
};

namespace ops {
/// Emits an attention and returns its result a; sets `attrs.sequence_length` to the builder's.
ValueId attention(GraphBuilder& g, ValueId qkv, ValueId starts, AttentionAttrs attrs);
}  // namespace ops

}  // namespace ftrun
