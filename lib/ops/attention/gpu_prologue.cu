#include "ops/attention/gpu.cuh"

namespace ftrun::cuda {

namespace {

// Computes, in one thread block for each query block of a sequence, the first key to which each
// token attends (the start of its document or of its window, whichever is later), and the first key
// block that the query block needs. A token always attends to itself, whatever `starts` says.
__global__ void compute_lowest_keys(const int32_t* starts, int32_t* lowest, int32_t* first_block,
                                    int sequence_length, int window, int query_blocks) {
  __shared__ int needed[kAttentionBlock];
  const int t = static_cast<int>(blockIdx.x % query_blocks * kAttentionBlock + threadIdx.x);
  const int64_t n = static_cast<int64_t>(blockIdx.x / query_blocks) * sequence_length + t;
  needed[threadIdx.x] = t;
  if (t < sequence_length) {
    const int from = max(starts[n], window > 0 ? t - window + 1 : 0);
    needed[threadIdx.x] = min(max(from, 0), t);
    lowest[n] = needed[threadIdx.x];
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  int first = needed[0];
  for (int i = 1; i < kAttentionBlock; ++i) first = min(first, needed[i]);
  first_block[blockIdx.x] = first / static_cast<int>(kAttentionBlock);
}

// Computes delta = da . a with one warp for each head of a token. Tokens whose block is computed
// elsewhere need no delta.
template <class T, int V>
__global__ void compute_delta(const T* da, const T* a, float* delta, int64_t tokens, int heads,
                              int head_size, int sequence_length, const int32_t* uncovered) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (item >= tokens * heads) return;
  if (uncovered != nullptr) {
    const int64_t token = item / heads, row = token / sequence_length;
    const auto t = static_cast<int>(token % sequence_length),
               block = t / static_cast<int>(kAttentionBlock);
    if (row * sequence_length +
            min((block + 1) * static_cast<int>(kAttentionBlock), sequence_length) <=
        *uncovered)
      return;
  }
  float sum = 0.0F;
  for (int i = threadIdx.x % 32 * V; i < head_size; i += 32 * V) {
    const Floats<V> left = load<V>(da + item * head_size + i),
                    right = load<V>(a + item * head_size + i);
#pragma unroll
    for (int k = 0; k < V; ++k) sum += left[k] * right[k];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) delta[item % heads * tokens + item / heads] = sum;
}

}  // namespace

void attention_prologue(DType dtype, const Attention& a, cudaStream_t stream) {
  const AttentionAttrs& at = a.attrs;
  const int64_t query_blocks = divide_up(at.sequence_length, kAttentionBlock);
  launch({blocks(a.tokens / at.sequence_length * query_blocks),
          static_cast<unsigned>(kAttentionBlock), 0, stream},
         compute_lowest_keys, a.starts, a.lowest, a.first_block,
         static_cast<int>(at.sequence_length), static_cast<int>(at.window),
         static_cast<int>(query_blocks));
  if (a.da == nullptr) return;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kThreads = 128;
    with_vectors<T>(vectors_fit<T>(at.head_size, a.da, a.a), [&](auto v) {
      // A head of 64 or 128 elements has fewer packs of 16 bytes than a warp has lanes. Packs of 4
      // elements keep more lanes busy.
      constexpr int V = decltype(v)::value > 1 ? 4 : 1;
      launch({blocks(divide_up(a.tokens * at.query_heads, kThreads / 32)), kThreads, 0, stream},
             compute_delta<T, V>, static_cast<const T*>(a.da), static_cast<const T*>(a.a), a.delta,
             a.tokens, static_cast<int>(at.query_heads), static_cast<int>(at.head_size),
             static_cast<int>(at.sequence_length), a.uncovered);
    });
  });
}

}  // namespace ftrun::cuda
