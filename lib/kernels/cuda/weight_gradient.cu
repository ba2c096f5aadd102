#include <algorithm>

#include "graph/gpu_workspace.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

namespace {

constexpr int kColumns = 32;
constexpr int kRowLanes = 8;

// Block (p, c) sums 32 columns over the p-th part of the tokens. Every sum has a fixed order.
template <class T>
__global__ void partial_sums(const T* dy, const T* x, const float* rstd, int64_t tokens, int64_t tokens_a_part,
                             int heads, int64_t width, int64_t row_stride, int64_t rstd_stride, float* partials) {
  __shared__ float sums[kRowLanes][kColumns + 1];
  const int64_t column = blockIdx.y * kColumns + threadIdx.x;
  const int64_t first = blockIdx.x * tokens_a_part, last = min(first + tokens_a_part, tokens);
  float sum = 0.0F;
  if (column < width)
    for (int64_t n = first + threadIdx.y; n < last; n += kRowLanes)
      for (int head = 0; head < heads; ++head) {
        const int64_t at = n * row_stride + head * width + column;
        const float d = to_float(dy[at]);
        sum += x == nullptr ? d : d * (to_float(x[at]) * rstd[n * rstd_stride + head]);
      }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  for (int lane = 1; lane < kRowLanes; ++lane) sum += sums[lane][threadIdx.x];
  partials[blockIdx.x * width + column] = sum;
}

template <class G>
__global__ void add_partials(const float* partials, int64_t parts, int64_t width, G* gradient, bool accumulate) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= width) return;
  float sum = 0.0F;
#pragma unroll 8
  for (int64_t p = 0; p < parts; ++p) sum += partials[p * width + column];
  gradient[column] = from_float<G>(accumulate ? to_float(gradient[column]) + sum : sum);
}

}  // namespace

void weight_gradient(DType dtype, const WeightGradient& g, cudaStream_t stream) {
  const int64_t room = g.workspace_bytes / static_cast<int64_t>(g.width * sizeof(float));
  const int64_t parts = std::max<int64_t>(1, std::min(room, gpu_partials(g.tokens)));
  auto* const partials = static_cast<float*>(g.workspace);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    launch({dim3(blocks(parts), blocks(divide_up(g.width, kColumns))), dim3(kColumns, kRowLanes), 0, stream},
           partial_sums<T>, static_cast<const T*>(g.dy), static_cast<const T*>(g.x), g.rstd, g.tokens,
           divide_up(g.tokens, parts), static_cast<int>(g.heads), g.width, g.row_stride, g.rstd_stride, partials);
  });
  with_type(g.gradient_dtype, [&](auto type) {
    using G = decltype(type);
    constexpr int kThreads = 128;
    launch({blocks(divide_up(g.width, kThreads)), kThreads, 0, stream}, add_partials<G>,
           static_cast<const float*>(partials), parts, g.width, static_cast<G*>(g.gradient), g.accumulate);
  });
}

}  // namespace ftrun::cuda
