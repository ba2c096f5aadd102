#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

namespace {

constexpr int kDoraThreads = 256;
/// Rows of results that a block scales one after another, once it knows its columns' factors.
constexpr int64_t kMostRowBlocks = 512;

// A block a row.
template <class T, int V>
__global__ void squared_lengths(const T* w, const float* delta, float* squares, int64_t columns) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * columns;
  float sum = 0.0F;
  for (int64_t i = threadIdx.x * V; i < columns; i += kDoraThreads * V) {
    const Floats<V> weight = load<V>(w + row + i), more = load<V>(delta + row + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float value = weight[k] + more[k];
      sum += value * value;
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

/// The parts of a product that have magnitudes; a fused product has three at most.
struct ScaledParts {
  static constexpr int kMost = 4;
  const float* squares;
  const float* magnitudes;
  int64_t first_column[kMost];
  int64_t columns[kMost];
  int count;

  __device__ float factor(int64_t column) const {
    int64_t before = 0;
    float found = 1.0F;
    // With places known when it is compiled the lists stay parameters, else they would be copied to local memory.
#pragma unroll
    for (int p = 0; p < kMost; ++p) {
      if (p >= count) break;
      const int64_t place = column - first_column[p];
      if (place >= 0 && place < columns[p]) found = over_length(magnitudes[before + place], squares[before + place]);
      before += columns[p];
    }
    return found;
  }
};

template <class T, int V>
__global__ void scale_column_rows(const T* x, const T* bias, T* y, ScaledParts parts, int64_t count, int64_t width) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kDoraThreads + threadIdx.x) * V;
  if (column >= width) return;
  Floats<V> factors, biases;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    factors[k] = parts.factor(column + k);
    biases[k] = bias == nullptr ? 0.0F : to_float(bias[column + k]);
  }
  for (int64_t n = blockIdx.y; n < count; n += gridDim.y) {
    Floats<V> values = load<V>(x + n * width + column);
#pragma unroll
    for (int k = 0; k < V; ++k) values[k] = values[k] * factors[k] + biases[k];
    store(y + n * width + column, values);
  }
}

}  // namespace

void squared_row_lengths(DType dtype, const void* w, const float* delta, float* squares, int64_t rows, int64_t columns,
                         cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto start = [&](auto v) {
      launch({blocks(rows), kDoraThreads, 0, stream}, squared_lengths<T, decltype(v)::value>, static_cast<const T*>(w), delta,
             squares, columns);
    };
    // Four numbers of `delta` are 16 bytes.
    if (vectors_fit<float>(columns, w, delta))
      start(std::integral_constant<int, 4>{});
    else
      start(std::integral_constant<int, 1>{});
  });
}

void scale_columns(DType dtype, const ScaledColumns& s, const DoraAttrs& attrs, cudaStream_t stream) {
  ScaledParts parts{.squares = s.squares, .magnitudes = s.magnitudes};
  require(attrs.parts.size() <= static_cast<size_t>(ScaledParts::kMost), "parts of a product that have magnitudes");
  for (const DoraAttrs::Part& part : attrs.parts) {
    parts.first_column[parts.count] = part.first_column;
    parts.columns[parts.count++] = part.columns;
  }
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(s.width, s.x, s.y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      const dim3 grid(blocks(divide_up(s.width, kDoraThreads * V)),
                      blocks(s.count < kMostRowBlocks ? s.count : kMostRowBlocks));
      launch({grid, kDoraThreads, 0, stream}, scale_column_rows<T, V>, static_cast<const T*>(s.x),
             static_cast<const T*>(s.bias), static_cast<T*>(s.y), parts, s.count, s.width);
    });
  });
}

}  // namespace ftrun::cuda
