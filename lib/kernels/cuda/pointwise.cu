#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

namespace {

template <class T, class To, int V>
__global__ void fill_row(const T* row, To* y, int64_t width, int64_t stride) {
  To* const out = y + blockIdx.x * stride;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V)
    store(out + i, load<V>(row + i));
}

__device__ inline double widened(double x) {
  return x;
}
template <class T>
__device__ float widened(T x) {
  return to_float(x);
}
template <class T, class Sum>
__device__ T narrowed(Sum x) {
  if constexpr (sizeof(T) == sizeof(double))
    return x;
  else
    return from_float<T>(x);
}

/// Calls `body(first, count)` for packs of V elements; the last pack may have fewer.
template <int V, class Body>
__device__ void for_packs(int64_t count, Body body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * V;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < count;
       i += step)
    body(i, i + V <= count ? V : static_cast<int>(count - i));
}

template <class From, class To, int V>
__global__ void convert_elements(const From* from, To* to, int64_t count) {
  for_packs<V>(count, [&](int64_t i, int elements) {
    if (elements == V) return store(to + i, load<V>(from + i));
    for (int k = 0; k < elements; ++k) to[i + k] = from_float<To>(to_float(from[i + k]));
  });
}

template <class From, class To, int V>
__global__ void add_elements_into(const From* from, To* to, int64_t count) {
  for_packs<V>(count, [&](int64_t i, int elements) {
    if (elements < V) {
      for (int k = 0; k < elements; ++k)
        to[i + k] = from_float<To>(to_float(to[i + k]) + to_float(from[i + k]));
      return;
    }
    Floats<V> sum = load<V>(to + i);
    const Floats<V> more = load<V>(from + i);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += more[k];
    store(to + i, sum);
  });
}

// Sums the blocks of the ranks elementwise, in the order of ranks, for communicators. A thread
// processes V elements at a time; the last thread also processes the rest, one by one.
template <class T, class Sum, int V>
__global__ void sum_blocks_elements(const T* blocks, int ranks, int64_t stride, T* out,
                                    int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * V;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < count;
       i += step) {
    if constexpr (V > 1) {
      if (i + V <= count) {
        Floats<V> sum = load<V>(blocks + i);
        for (int rank = 1; rank < ranks; ++rank) {
          const Floats<V> more = load<V>(blocks + rank * stride + i);
#pragma unroll
          for (int k = 0; k < V; ++k) sum[k] += more[k];
        }
        store(out + i, sum);
        continue;
      }
    }
    for (int64_t at = i; at < i + V && at < count; ++at) {
      Sum sum = widened(blocks[at]);
      for (int rank = 1; rank < ranks; ++rank) sum += widened(blocks[rank * stride + at]);
      out[at] = narrowed<T>(sum);
    }
  }
}

}  // namespace

void fill_rows(DType dtype, const void* row, const RowSpan& y, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto fill = [&](auto* to) {
      using To = std::remove_pointer_t<decltype(to)>;
      const bool fit = vectors_fit<To>(y.width, row, to) && vectors_fit<To>(y.stride);
      with_vectors<To>(fit, [&](auto v) {
        constexpr int V = decltype(v)::value;
        const auto threads = static_cast<unsigned>(threads_for(y.width / V, kPointwiseThreads));
        launch({blocks(y.count), threads, 0, stream}, fill_row<T, To, V>,
               static_cast<const T*>(row), to, y.width, y.stride);
      });
    };
    if (y.dtype == dtype) return fill(static_cast<T*>(y.data));
    require(y.dtype == DType::kF32, "rows are of the activations' dtype or of F32");
    fill(static_cast<float*>(y.data));
  });
}

namespace {

/// The number of elements that are moved at once if both ranges begin at multiples of 16 bytes: 8
/// or 16 bytes of the narrower type.
constexpr int kPack = 4;

/// Calls `body` with values of both types, the number of elements that are moved at once, and the
/// number of thread blocks for `count` elements.
template <class Body>
void with_types(DType from_dtype, const void* from, DType to_dtype, const void* to, int64_t count,
                Body body) {
  constexpr int64_t kMaxBlocks = 4096;
  const bool packs = is_aligned(from) && is_aligned(to);
  const int64_t wanted = divide_up(divide_up(count, packs ? kPack : 1), kPointwiseThreads);
  const unsigned grid = blocks(wanted < kMaxBlocks ? wanted : kMaxBlocks);
  with_type(from_dtype, [&](auto from_type) {
    with_type(to_dtype, [&](auto to_type) {
      if (packs)
        body(from_type, to_type, std::integral_constant<int, kPack>{}, grid);
      else
        body(from_type, to_type, std::integral_constant<int, 1>{}, grid);
    });
  });
}

}  // namespace

void convert(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count,
             cudaStream_t stream) {
  with_types(from_dtype, from, to_dtype, to, count,
             [&](auto from_type, auto to_type, auto pack, unsigned grid) {
               using From = decltype(from_type);
               using To = decltype(to_type);
               launch({grid, kPointwiseThreads, 0, stream},
                      convert_elements<From, To, decltype(pack)::value>,
                      static_cast<const From*>(from), static_cast<To*>(to), count);
             });
}

void add_into(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count,
              cudaStream_t stream) {
  with_types(from_dtype, from, to_dtype, to, count,
             [&](auto from_type, auto to_type, auto pack, unsigned grid) {
               using From = decltype(from_type);
               using To = decltype(to_type);
               launch({grid, kPointwiseThreads, 0, stream},
                      add_elements_into<From, To, decltype(pack)::value>,
                      static_cast<const From*>(from), static_cast<To*>(to), count);
             });
}

void sum_blocks(DType dtype, const void* blocks, int ranks, int64_t stride, void* out,
                int64_t count, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 4096;
  const auto run = [&](auto type, auto sum, auto vector) {
    using T = decltype(type);
    constexpr int V = decltype(vector)::value;
    const int64_t wanted = divide_up(divide_up(count, V), kPointwiseThreads);
    launch(
        {cuda::blocks(wanted < kMaxBlocks ? wanted : kMaxBlocks), kPointwiseThreads, 0, stream},
        sum_blocks_elements<T, decltype(sum), V>, static_cast<const T*>(blocks), ranks, stride,
        static_cast<T*>(out), count);
  };
  if (dtype == DType::kF64) return run(double{}, double{}, std::integral_constant<int, 1>{});
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(stride, blocks, out), [&](auto v) { run(type, float{}, v); });
  });
}

}  // namespace ftrun::cuda
