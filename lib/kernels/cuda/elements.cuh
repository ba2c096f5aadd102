#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "base/dtype.h"
#include "base/round_up.h"
#include "kernels/cuda/launch.cuh"

// Kernels read and write elements through the functions of this file: elements are stored as T
// (float, bf16, fp16), computed as float, and moved V at a time.
namespace ftrun::cuda {

using Bf16 = __nv_bfloat16;
using Half = __half;

/// The largest number of threads in a block of an elementwise kernel.
inline constexpr int kPointwiseThreads = 256;

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(Bf16 x) {
  return __bfloat162float(x);
}
__device__ inline float to_float(Half x) {
  return __half2float(x);
}
template <class T>
__device__ T from_float(float x) {
  if constexpr (sizeof(T) == 4)
    return x;
  else if constexpr (std::is_same_v<T, Half>)
    return __float2half_rn(x);
  else
    return __float2bfloat16_rn(x);
}

/// Floats holds V floats that are loaded from memory or will be stored there.
template <int V>
struct Floats {
  float e[V];
  __device__ float& operator[](int i) { return e[i]; }
  __device__ float operator[](int i) const { return e[i]; }
};

template <int V>
__device__ void add_to(Floats<V>& sum, const Floats<V>& x) {
#pragma unroll
  for (int i = 0; i < V; ++i) sum[i] += x[i];
}

template <int V>
__device__ Floats<V> plus(const Floats<V>& a, const Floats<V>& b) {
  Floats<V> sum = a;
  add_to(sum, b);
  return sum;
}

/// Word is the type in which V elements are moved to and from memory: one word when they have 8 or
/// 16 bytes.
template <class T, int V>
using Word = std::conditional_t<V * sizeof(T) == 16, uint4, uint2>;
template <class T, int V>
inline constexpr bool kOneWord = V * sizeof(T) == 16 || (V > 1 && V * sizeof(T) == 8);

/// Loads V elements at `p`, which is aligned to all of them.
template <int V, class T>
__device__ Floats<V> load(const T* p) {
  Floats<V> out;
  if constexpr (kOneWord<T, V>) {
    const auto bits = *reinterpret_cast<const Word<T, V>*>(p);
    T parts[V];
    memcpy(parts, &bits, sizeof bits);
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = to_float(parts[i]);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = to_float(p[i]);
  }
  return out;
}

/// Returns the word that holds V elements, rounded to T.
template <class T, int V>
__device__ Word<T, V> word_of(const Floats<V>& values) {
  T parts[V];
#pragma unroll
  for (int i = 0; i < V; ++i) parts[i] = from_float<T>(values[i]);
  Word<T, V> bits;
  memcpy(&bits, parts, sizeof bits);
  return bits;
}

template <int V, class T>
__device__ void store(T* p, const Floats<V>& values) {
  if constexpr (kOneWord<T, V>) {
    *reinterpret_cast<Word<T, V>*>(p) = word_of<T>(values);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) p[i] = from_float<T>(values[i]);
  }
}

/// Stores V elements in global memory as store() does, with one instruction that the compiler does
/// not split: nvcc 13.0 splits an ordinary store of a word into four if the parts of the word are
/// computed separately.
template <int V, class T>
__device__ void store_whole(T* p, const Floats<V>& values) {
  if constexpr (kOneWord<T, V>)
    __stwb(reinterpret_cast<Word<T, V>*>(p), word_of<T>(values));
  else
    store(p, values);
}

/// Rounds a number to T, as storing it does, and converts it back to float.
template <class T>
__device__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

/// Adds the term of a token to the gradient of a norm's weight, rounded once: every kernel computes
/// the same bits.
__device__ inline float weight_term(float dy, float x, float rstd, float sum) {
  return fmaf(dy, x * rstd, sum);
}

/// Divides by a row's length. A row of zeros has no direction: the result is 0, and the row stays
/// zero.
__device__ inline float divide_by_length(float numerator, float squared_length) {
  return squared_length == 0.0F ? 0.0F : numerator / sqrtf(squared_length);
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

/// Returns the sum over the block, which is equal in every thread. Blocks are whole warps. The sum
/// is a fixed tree.
__device__ inline float block_sum(float x) {
  __shared__ float parts[32];
  x = warp_sum(x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();  // an earlier call may still read `parts`
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  const int warps = blockDim.x / 32;
  return warp_sum(lane < warps ? parts[lane] : 0.0F);
}

// --- host ----------------------------------------------------------------------------------------

inline bool is_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/// Returns whether rows of `width` elements of T at all these addresses can be moved 16 bytes at a
/// time.
template <class T, class... Pointers>
bool vectors_fit(int64_t width, Pointers... pointers) {
  return width % static_cast<int64_t>(16 / sizeof(T)) == 0 && (is_aligned(pointers) && ...);
}

/// Returns a number of threads in whole warps, enough for `items`, at most `max_threads`.
inline int threads_for(int64_t items, int max_threads) {
  const int64_t warps = (items + 31) / 32;
  return static_cast<int>(warps * 32 < max_threads ? (warps > 0 ? warps * 32 : 32) : max_threads);
}

/// Calls `body` with a value of the type that `dtype` (F32, BF16 or F16; checked by the caller)
/// stores.
template <class Body>
void with_type(DType dtype, Body body) {
  if (dtype == DType::kBF16)
    body(Bf16{});
  else if (dtype == DType::kF16)
    body(Half{});
  else
    body(float{});
}

/// Calls `body` with the number of elements of T to move at once, as a constant.
template <class T, class Body>
void with_vectors(bool fit, Body body) {
  if (fit)
    body(std::integral_constant<int, static_cast<int>(16 / sizeof(T))>{});
  else
    body(std::integral_constant<int, 1>{});
}

}  // namespace ftrun::cuda
