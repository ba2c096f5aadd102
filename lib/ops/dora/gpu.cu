#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/dora/dora.h"
#include "ops/dora/workspace.h"

namespace ftrun::cuda {

namespace {

/// ScaledColumns holds the operands of y = x * f + bias (null: none), where f is magnitude /
/// sqrt(squares) for the columns of the parts and 1 elsewhere; y may be x.
struct ScaledColumns {
  const void* x;
  /// F32: the squared lengths and the magnitudes of the columns of all parts, one part after the
  /// other.
  const float* squares;
  const float* magnitudes;
  const void* bias;
  void* y;
  int64_t count, width;
};

constexpr int kDoraThreads = 256;
/// The largest number of groups of rows. A block scales the rows of its group one after another,
/// after it has computed the factors of its columns.
constexpr int64_t kMaxRowBlocks = 512;

// Computes the squared length of each row, one thread block for each.
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

/// ScaledParts holds the parts of a linear layer that have magnitudes; a fused one has at most
/// three.
struct ScaledParts {
  static constexpr int kMaxParts = 4;
  const float* squares;
  const float* magnitudes;
  int64_t first_column[kMaxParts];
  int64_t columns[kMaxParts];
  int count;

  __device__ float factor(int64_t column) const {
    int64_t before = 0;
    float found = 1.0F;
    // Indices that are known at compile time let the lists stay kernel parameters; otherwise they
    // would be copied to local memory.
#pragma unroll
    for (int p = 0; p < kMaxParts; ++p) {
      if (p >= count) break;
      const int64_t index = column - first_column[p];
      if (index >= 0 && index < columns[p])
        found = divide_by_length(magnitudes[before + index], squares[before + index]);
      before += columns[p];
    }
    return found;
  }
};

template <class T, int V>
__global__ void scale_column_rows(const T* x, const T* bias, T* y, ScaledParts parts, int64_t count,
                                  int64_t width) {
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
    store_whole(y + n * width + column, values);
  }
}

/// Computes squares[rows] = sums over columns of (w + delta)^2; w and delta (F32) are [rows,
/// columns].
void squared_row_lengths(DType dtype, const void* w, const float* delta, float* squares,
                         int64_t rows, int64_t columns, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto start = [&](auto v) {
      launch({blocks(rows), kDoraThreads, 0, stream}, squared_lengths<T, decltype(v)::value>,
             static_cast<const T*>(w), delta, squares, columns);
    };
    // Vectors have four elements, because `delta` is F32: 16 bytes.
    if (vectors_fit<float>(columns, w, delta))
      start(std::integral_constant<int, 4>{});
    else
      start(std::integral_constant<int, 1>{});
  });
}

void scale_columns(DType dtype, const ScaledColumns& s, const DoraAttrs& attrs,
                   cudaStream_t stream) {
  ScaledParts parts{.squares = s.squares, .magnitudes = s.magnitudes};
  require(attrs.parts.size() <= static_cast<size_t>(ScaledParts::kMaxParts),
          "the parts of the linear layer have magnitudes");
  for (const DoraAttrs::ScaledColumns& part : attrs.parts) {
    parts.first_column[parts.count] = part.first_column;
    parts.columns[parts.count++] = part.columns;
  }
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(s.width, s.x, s.y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      const dim3 grid(blocks(divide_up(s.width, kDoraThreads * V)),
                      blocks(s.count < kMaxRowBlocks ? s.count : kMaxRowBlocks));
      launch({grid, kDoraThreads, 0, stream}, scale_column_rows<T, V>, static_cast<const T*>(s.x),
             static_cast<const T*>(s.bias), static_cast<T*>(s.y), parts, s.count, s.width);
    });
  });
}

void scale(const Operation& op, bool adds_bias) {
  scale_columns(op.dtype(),
                {.x = op.in(0),
                 .squares = op.floats_in(1),
                 .magnitudes = op.floats_in(2),
                 .bias = adds_bias ? op.in(3) : nullptr,
                 .y = op.out(0),
                 .count = op.in_dims(0)[0],
                 .width = op.in_dims(0)[1]},
                op.attrs<DoraAttrs>(), op.stream());
}

}  // namespace

/// Computes squared row lengths of W + scale B A, panel by panel, so that the sum is never in
/// memory as a whole.
void run_dora_squared_lengths(const Operation& op, const KernelLibraries& libraries) {
  const int64_t inputs = op.in_dims(1)[1];
  const QuantizedFormat& format = op.quantized(0);
  const std::vector<LoraPart> parts = lora_parts(op.graph(), op.op());
  const GpuDoraWorkspace layout = gpu_dora_workspace(
      max_columns(parts), inputs, dtype_bytes(op.dtype()), static_cast<bool>(format));
  op.require_workspace(layout.bytes);
  auto* const delta = op.workspace<float>(layout.delta);
  float* squares = op.floats_out(0);
  for (size_t p = 0; p < parts.size(); ++p) {
    const LoraPart& part = parts[p];
    for (int64_t row = 0; row < part.columns; row += layout.rows) {
      const int64_t rows = std::min(layout.rows, part.columns - row),
                    first = part.first_column + row;
      libraries.matmul.run({.m = rows,
                            .n = inputs,
                            .k = part.rank,
                            .a = op.element(op.in(2 + p), row * part.rank),
                            .b = op.element(op.in(1), part.first_h_column * inputs),
                            .c = delta,
                            .alpha = static_cast<float>(part.scale),
                            .dtype = op.dtype(),
                            .out_dtype = DType::kF32},
                           op.stream());
      void* const dequantized = format ? op.workspace<void>(layout.weight) : nullptr;
      if (format)
        dequantize(op.dtype(), {format, op.records(0), dequantized, inputs, first, rows, 0, inputs},
                   op.stream());
      const void* const weight = format ? dequantized : op.element(op.in(0), first * inputs);
      squared_row_lengths(op.dtype(), weight, delta, squares + row, rows, inputs, op.stream());
    }
    squares += part.columns;
  }
}

void run_dora_scale(const Operation& op, const KernelLibraries& /*libraries*/) {
  scale(op, op.has_in(3) && op.attrs<DoraAttrs>().adds_bias);
}

void run_dora_scale_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  scale(op, false);
}

void run_dora_scale_wgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto [gradient, dtype] = op.gradient(0);
  int64_t before = 0;
  for (const DoraAttrs::ScaledColumns& part : op.attrs<DoraAttrs>().parts) {
    VectorGradient g = vector_gradient_of(op, 0);
    g.dy = op.element(op.in(0), part.first_column);
    g.x = op.element(op.in(1), part.first_column);
    g.width = part.columns;
    g.gradient = static_cast<std::byte*>(gradient) + before * dtype_bytes(dtype);
    g.squares = op.floats_in(2) + before;
    vector_gradient(op.dtype(), g, op.stream());
    before += part.columns;
  }
}

}  // namespace ftrun::cuda
