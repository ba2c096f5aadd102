#include "base/error.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/dropout_mask.h"

namespace ftrun::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMostAngles = 256;

/// Handed over as a parameter of the kernel: no copy to wait for.
struct Frequencies {
  float e[kMostAngles];
};

// The angle is a product of fp32 numbers, as on the CPU.
__global__ void rope_table_rows(const int32_t* positions, float* table, Frequencies frequencies, int half,
                                double magnitude) {
  const int64_t n = blockIdx.x;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const double angle = __fmul_rn(static_cast<float>(positions[n]), frequencies.e[i]);
    table[n * 2 * half + i] = static_cast<float>(magnitude * cos(angle));
    table[n * 2 * half + half + i] = static_cast<float>(magnitude * sin(angle));
  }
}

// One block a token; a thread rotates V pairs or copies V elements of v. y may be x.
template <class T, int V>
__global__ void rope_rows(const T* x, const float* table, T* y, int rotated_heads, int copied, int half,
                          float sine_sign) {
  const int64_t n = blockIdx.x;
  const int head_size = 2 * half, rotated = rotated_heads * head_size;
  const int packs = half / V, pairs = rotated_heads * packs;
  const T* const from = x + n * (rotated + copied);
  T* const to = y + n * (rotated + copied);
  const float* const cosine = table + n * head_size;
  for (int item = threadIdx.x; item < pairs; item += blockDim.x) {
    const int i = item % packs * V, at = item / packs * head_size + i;
    const Floats<V> a = load<V>(from + at), b = load<V>(from + at + half);
    Floats<V> first, second;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float c = cosine[i + k], s = cosine[half + i + k] * sine_sign;
      first[k] = a[k] * c - b[k] * s;
      second[k] = b[k] * c + a[k] * s;
    }
    store(to + at, first);
    store(to + at + half, second);
  }
  if (x == y) return;
  for (int i = threadIdx.x * V; i < copied; i += blockDim.x * V) store(to + rotated + i, load<V>(from + rotated + i));
}

__device__ inline float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

template <class T, int V>
__global__ void swiglu_rows(const T* gu, T* s, int64_t width) {
  const T* const gate = gu + blockIdx.x * 2 * width;
  T* const out = s + blockIdx.x * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> g = load<V>(gate + i), u = load<V>(gate + width + i);
    Floats<V> v;
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = g[k] * sigmoid(g[k]) * u[k];
    store(out + i, v);
  }
}

// d silu(g) = sigma (1 + g (1 - sigma)). dgu may be gu.
template <class T, int V>
__global__ void swiglu_dgrad_rows(const T* ds, const T* gu, T* dgu, int64_t width) {
  const int64_t at = blockIdx.x * 2 * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> d = load<V>(ds + blockIdx.x * width + i);
    const Floats<V> g = load<V>(gu + at + i), u = load<V>(gu + at + width + i);
    Floats<V> dgate, dup;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float sigma = sigmoid(g[k]);
      dup[k] = d[k] * g[k] * sigma;
      dgate[k] = d[k] * u[k] * sigma * (1.0F + g[k] * (1.0F - sigma));
    }
    store(dgu + at + i, dgate);
    store(dgu + at + width + i, dup);
  }
}

/// Of all rows.
struct DropoutRows {
  int64_t layer, site, first_token;
  uint32_t first_column, least_kept;
  float scale;
  /// DropoutAttrs::rest.
  bool rest;
};

// One block a token. y may be x.
template <class T, int V>
__global__ void dropout_rows(const T* x, T* y, int64_t width, DropoutRows rows, const StepScalars* scalars) {
  const uint64_t row_key = dropout_row_key(scalars->dropout_key, rows.layer, rows.site, rows.first_token + blockIdx.x);
  const T* const from = x + blockIdx.x * width;
  T* const to = y + blockIdx.x * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    Floats<V> v = load<V>(from + i);
    const int64_t first = rows.first_column + i;
    const DropoutKeys begins = dropout_keys(row_key, first), ends = dropout_keys(row_key, first + V - 1);
    const int64_t next_stretch = (first / kDropoutStretch + 1) * kDropoutStretch;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const uint32_t bits = dropout_bits(first + k < next_stretch ? begins : ends, static_cast<uint32_t>(first + k));
      const float kept = bits >= rows.least_kept ? v[k] * rows.scale : 0.0F;
      v[k] = rows.rest ? v[k] - rounded<T>(kept) : kept;
    }
    store(to + i, v);
  }
}

template <class T, int V>
__global__ void add_elements(const T* a, const T* b, T* out, int64_t count) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (i >= count) return;
  Floats<V> sum = load<V>(a + i);
  const Floats<V> more = load<V>(b + i);
#pragma unroll
  for (int k = 0; k < V; ++k) sum[k] += more[k];
  store(out + i, sum);
}

template <class T, int V>
__global__ void fill_row(const T* row, T* y, int64_t width) {
  T* const out = y + blockIdx.x * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) store(out + i, load<V>(row + i));
}

__device__ inline double widened(double x) { return x; }
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

/// Calls `body` with where each V elements begin and how many there are: V, and fewer at the end.
template <int V, class Body>
__device__ void for_packs(int64_t count, Body body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * V;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < count; i += step)
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
      for (int k = 0; k < elements; ++k) to[i + k] = from_float<To>(to_float(to[i + k]) + to_float(from[i + k]));
      return;
    }
    Floats<V> sum = load<V>(to + i);
    const Floats<V> more = load<V>(from + i);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += more[k];
    store(to + i, sum);
  });
}

// Kernel of the ordered sums of communicators. The vectors' threads also do what is left behind them.
template <class T, class Sum, int V>
__global__ void sum_blocks_elements(const T* blocks, int ranks, int64_t stride, T* out, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * V;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < count; i += step) {
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

void rope_table(const int32_t* positions, float* table, int64_t count, const RopeTableAttrs& attrs,
                cudaStream_t stream) {
  const auto half = static_cast<int>(attrs.inverse_frequencies.size());
  if (half > kMostAngles)
    throw Error(ExitCode::kUnsupported, cat("heads of ", 2 * half, " elements are too large for the CUDA kernels"),
                cat("they go up to ", 2 * kMostAngles));
  Frequencies frequencies{};
  for (int i = 0; i < half; ++i)
    frequencies.e[i] = static_cast<float>(attrs.inverse_frequencies[static_cast<size_t>(i)]);
  launch({blocks(count), static_cast<unsigned>(threads_for(half, kThreads)), 0, stream}, rope_table_rows, positions,
         table, frequencies, half, attrs.magnitude);
}

void rope(DType dtype, const void* x, const float* table, void* y, int64_t count, const HeadAttrs& heads,
          float sine_sign, cudaStream_t stream) {
  const int64_t half = heads.head_size / 2, rotated_heads = heads.query_heads + heads.kv_heads;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(half, x, y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(count), static_cast<unsigned>(threads_for(rotated_heads * half / V, kThreads)), 0, stream},
             rope_rows<T, V>, static_cast<const T*>(x), table, static_cast<T*>(y), static_cast<int>(rotated_heads),
             static_cast<int>(heads.kv_heads * heads.head_size), static_cast<int>(half), sine_sign);
    });
  });
}

void swiglu(DType dtype, const void* gu, void* s, int64_t count, int64_t width, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(width, gu, s), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(count), static_cast<unsigned>(threads_for(width / V, kThreads)), 0, stream}, swiglu_rows<T, V>,
             static_cast<const T*>(gu), static_cast<T*>(s), width);
    });
  });
}

void swiglu_dgrad(DType dtype, const void* ds, const void* gu, void* dgu, int64_t count, int64_t width,
                  cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(width, ds, gu, dgu), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(count), static_cast<unsigned>(threads_for(width / V, kThreads)), 0, stream},
             swiglu_dgrad_rows<T, V>, static_cast<const T*>(ds), static_cast<const T*>(gu), static_cast<T*>(dgu),
             width);
    });
  });
}

void dropout(DType dtype, const Dropout& d, cudaStream_t stream) {
  const DropoutRows rows{.layer = d.layer,
                         .site = d.attrs.site,
                         .first_token = d.first_token,
                         .first_column = static_cast<uint32_t>(d.attrs.first_column),
                         .least_kept = least_kept_bits(d.attrs),
                         .scale = static_cast<float>(dropout_scale(d.attrs)),
                         .rest = d.attrs.rest};
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(d.width, d.x, d.y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(d.count), static_cast<unsigned>(threads_for(d.width / V, kThreads)), 0, stream},
             dropout_rows<T, V>, static_cast<const T*>(d.x), static_cast<T*>(d.y), d.width, rows, d.scalars);
    });
  });
}

void add(DType dtype, const void* a, const void* b, void* out, int64_t count, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(count, a, b, out), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(divide_up(count / V, kThreads)), kThreads, 0, stream}, add_elements<T, V>,
             static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), count);
    });
  });
}

void fill_rows(DType dtype, const void* row, void* y, int64_t count, int64_t width, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(width, row, y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(count), static_cast<unsigned>(threads_for(width / V, kThreads)), 0, stream}, fill_row<T, V>,
             static_cast<const T*>(row), static_cast<T*>(y), width);
    });
  });
}

namespace {

/// Elements that are moved at once where both begin at multiples of 16 bytes: 8 or 16 bytes of the narrower.
constexpr int kPack = 4;

/// Calls `body` with values of the types of both, the elements that are moved at once and the blocks for
/// `count` elements.
template <class Body>
void with_types(DType from_dtype, const void* from, DType to_dtype, const void* to, int64_t count, Body body) {
  constexpr int64_t kMostBlocks = 4096;
  const bool packs = aligned(from) && aligned(to);
  const int64_t wanted = divide_up(divide_up(count, packs ? kPack : 1), kThreads);
  const unsigned grid = blocks(wanted < kMostBlocks ? wanted : kMostBlocks);
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

void convert(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count, cudaStream_t stream) {
  with_types(from_dtype, from, to_dtype, to, count, [&](auto from_type, auto to_type, auto pack, unsigned grid) {
    using From = decltype(from_type);
    using To = decltype(to_type);
    launch({grid, kThreads, 0, stream}, convert_elements<From, To, decltype(pack)::value>, static_cast<const From*>(from),
           static_cast<To*>(to), count);
  });
}

void add_into(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count, cudaStream_t stream) {
  with_types(from_dtype, from, to_dtype, to, count, [&](auto from_type, auto to_type, auto pack, unsigned grid) {
    using From = decltype(from_type);
    using To = decltype(to_type);
    launch({grid, kThreads, 0, stream}, add_elements_into<From, To, decltype(pack)::value>, static_cast<const From*>(from),
           static_cast<To*>(to), count);
  });
}

void sum_blocks(DType dtype, const void* blocks, int ranks, int64_t stride, void* out, int64_t count,
                cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 4096;
  const auto run = [&](auto type, auto sum, auto vector) {
    using T = decltype(type);
    constexpr int V = decltype(vector)::value;
    const int64_t wanted = divide_up(divide_up(count, V), kThreads);
    launch({cuda::blocks(wanted < kMostBlocks ? wanted : kMostBlocks), kThreads, 0, stream},
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
