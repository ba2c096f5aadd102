#include <algorithm>

#include "graph/op_workspace.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/operation.h"

namespace ftrun::cuda {

namespace {

constexpr int kColumns = 32;

// Sums columns over tokens: thread block (p, c) sums 32 columns over the p-th part of the tokens.
// Every sum has a fixed order.
template <class T>
__global__ void partial_sums(const T* dy, const T* x, const float* mean, const float* rstd,
                             int64_t tokens, int64_t tokens_a_part, int heads, int64_t width,
                             int64_t row_stride, int64_t rstd_stride, int64_t rstd_columns,
                             float* partials) {
  __shared__ float sums[kPartLanes][kColumns + 1];
  const int64_t column = blockIdx.y * kColumns + threadIdx.x;
  const int64_t first = blockIdx.x * tokens_a_part, last = min(first + tokens_a_part, tokens);
  float sum = 0.0F;
  if (column < width)
    for (int64_t n = first + threadIdx.y; n < last; n += kPartLanes)
      for (int head = 0; head < heads; ++head) {
        const int64_t at = n * row_stride + head * width + column;
        const float d = to_float(dy[at]);
        if (x == nullptr) {
          sum += d;
          continue;
        }
        const int64_t own = rstd_columns > 0 ? column / rstd_columns : 0;
        const int64_t statistic = n * rstd_stride + head + own;
        const float value = to_float(x[at]);
        sum = weight_term(d, mean == nullptr ? value : value - mean[statistic],
                          rstd == nullptr ? 1.0F : rstd[statistic], sum);
      }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  for (int lane = 1; lane < kPartLanes; ++lane) sum += sums[lane][threadIdx.x];
  partials[blockIdx.x * width + column] = sum;
}

template <class G>
__global__ void sum_parts(const float* partials, int64_t parts, int64_t width, const float* squares,
                          G* gradient, bool accumulate) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= width) return;
  float sum = 0.0F;
#pragma unroll 8
  for (int64_t p = 0; p < parts; ++p) sum += partials[p * width + column];
  if (squares != nullptr) sum = divide_by_length(sum, squares[column]);
  gradient[column] = from_float<G>(accumulate ? to_float(gradient[column]) + sum : sum);
}

}  // namespace

int64_t vector_gradient_parts(const VectorGradient& g) {
  const int64_t workspace_parts = g.workspace_bytes / static_cast<int64_t>(g.width * sizeof(float));
  return std::max<int64_t>(1, std::min(workspace_parts, count_gpu_partials(g.tokens)));
}

int64_t vector_gradient_tokens(const VectorGradient& g) {
  return divide_up(g.tokens, vector_gradient_parts(g));
}

void add_partials(const VectorGradient& g, cudaStream_t stream) {
  with_type(g.gradient_dtype, [&](auto type) {
    using G = decltype(type);
    constexpr int kThreads = 128;
    launch({blocks(divide_up(g.width, kThreads)), kThreads, 0, stream}, sum_parts<G>,
           static_cast<const float*>(g.workspace), vector_gradient_parts(g), g.width, g.squares,
           static_cast<G*>(g.gradient), g.accumulate);
  });
}

void vector_gradient(DType dtype, const VectorGradient& g, cudaStream_t stream) {
  auto* const partials = static_cast<float*>(g.workspace);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const dim3 grid(blocks(vector_gradient_parts(g)), blocks(divide_up(g.width, kColumns)));
    launch({grid, dim3(kColumns, kPartLanes), 0, stream}, partial_sums<T>,
           static_cast<const T*>(g.dy), static_cast<const T*>(g.x), g.mean, g.rstd, g.tokens,
           vector_gradient_tokens(g), static_cast<int>(g.heads), g.width, g.row_stride,
           g.rstd_stride, g.rstd_columns, partials);
  });
  add_partials(g, stream);
}

VectorGradient vector_gradient_of(const Operation& op, size_t i) {
  const auto [gradient, dtype] = op.gradient(i);
  return {.dy = op.in(0),
          .x = nullptr,
          .rstd = nullptr,
          .tokens = op.in_dims(0)[0],
          .heads = 1,
          .width = op.out_dims(i)[0],
          .row_stride = op.in_dims(0)[1],
          .rstd_stride = 1,
          .gradient = gradient,
          .gradient_dtype = dtype,
          .accumulate = op.accumulates(),
          .workspace = op.workspace<void>(),
          .workspace_bytes = op.workspace_bytes()};
}

}  // namespace ftrun::cuda
