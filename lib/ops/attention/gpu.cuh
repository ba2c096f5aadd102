#pragma once

#include "kernels/cuda/elements.cuh"
#include "ops/attention/gpu.h"
#include "ops/attention/workspace.h"

// The attention kernels for fp32 and for 16 bits share this header. It finds the rows of a head in
// memory, and the keys that a query sees.
namespace ftrun::cuda {

/// AttentionArgs holds the arguments of the attention kernels, for elements of type T.
template <class T>
struct AttentionArgs {
  const T* qkv;
  T* a;
  float* lse;
  const T* da;
  T* dqkv;
  /// The first key that each token's query sees.
  const int32_t* lowest;
  const int32_t* first_block;
  const float* delta;
  const int32_t* uncovered;
  int64_t tokens;
  /// The number of elements of a row of qkv and of a row of a.
  int64_t width, out_width;
  int sequence_length, blocks, query_heads, kv_heads, group, head_size;
  float scale;
  /// The bound on scores; 0: scores have none.
  float softcap;
  /// Rows can be moved 16 bytes at a time.
  bool vectors;

  __device__ const T* query(int64_t token, int head) const {
    return qkv + token * width + head * head_size;
  }
  __device__ const T* key(int64_t token, int kv_head) const {
    return query(token, query_heads + kv_head);
  }
  __device__ const T* value(int64_t token, int kv_head) const {
    return key(token, kv_heads + kv_head);
  }
  __device__ int64_t out(int64_t token, int head) const {
    return token * out_width + head * head_size;
  }
  /// Returns whether the tokens before `end` are computed elsewhere (Attention::uncovered).
  __device__ bool is_covered(int64_t end) const {
    return uncovered != nullptr && end <= *uncovered;
  }
};

/// ScaledScores computes scores, times `unit`, from dot products of queries and keys. A kernel's
/// loop over scores takes such a type as a parameter; with_scores() chooses it.
struct ScaledScores {
  float factor;

  __device__ float score(float dot) const { return dot * factor; }
  /// Returns the derivative of the score with respect to the dot product, divided by the scale.
  __device__ float slope(float /*dot*/) const { return 1.0F; }
};

/// CappedScores computes bounded scores: softcap tanh(scaled / softcap).
struct CappedScores {
  float inner, outer;

  __device__ float tangent(float dot) const { return tanhf(dot * inner); }
  __device__ float score(float dot) const { return tangent(dot) * outer; }
  __device__ float slope(float dot) const {
    const float t = tangent(dot);
    return 1.0F - t * t;
  }
};

/// Calls loop(scores), where scores are in units of 1 / unit. All threads of a block take the same
/// branch.
template <class T, class Loop>
__device__ void with_scores(const AttentionArgs<T>& args, float unit, Loop loop) {
  if (args.softcap > 0.0F)
    loop(CappedScores{args.scale / args.softcap, args.softcap * unit});
  else
    loop(ScaledScores{args.scale * unit});
}

template <class T>
AttentionArgs<T> attention_args(const Attention& a) {
  const AttentionAttrs& at = a.attrs;
  AttentionArgs<T> args{};
  args.qkv = static_cast<const T*>(a.qkv);
  args.a = static_cast<T*>(a.a);
  args.lse = a.lse;
  args.da = static_cast<const T*>(a.da);
  args.dqkv = static_cast<T*>(a.dqkv);
  args.lowest = a.lowest;
  args.first_block = a.first_block;
  args.delta = a.delta;
  args.uncovered = a.uncovered;
  args.tokens = a.tokens;
  args.width = (at.query_heads + 2 * at.kv_heads) * at.head_size;
  args.out_width = at.query_heads * at.head_size;
  args.sequence_length = static_cast<int>(at.sequence_length);
  args.blocks = static_cast<int>(divide_up(at.sequence_length, kAttentionBlock));
  args.query_heads = static_cast<int>(at.query_heads);
  args.kv_heads = static_cast<int>(at.kv_heads);
  args.group = static_cast<int>(at.query_heads / at.kv_heads);
  args.head_size = static_cast<int>(at.head_size);
  args.scale = static_cast<float>(at.scale);
  args.softcap = static_cast<float>(at.softcap);
  args.vectors = vectors_fit<T>(at.head_size, a.qkv, a.a, a.da, a.dqkv);
  return args;
}

}  // namespace ftrun::cuda
