#include "base/error.h"
#include "ops/attention/gpu.cuh"

// Attention in fp32 without tensor cores: the same tiles and order as gpu_narrow.cu, kept plain. A
// block of 256 threads, 16 x 16, holds tiles of 32 tokens; thread (x, y) has rows y, y + 16 and
// columns x, x + 16, ... of every result.
namespace ftrun::cuda {

namespace {

constexpr int kSide = 16;
constexpr int kTile = 2 * kSide;
constexpr int kMaxColumns = 256 / kSide;
constexpr float kInfinity = __builtin_inff();
constexpr int kWeightStride = kTile + 1;

using Args = AttentionArgs<float>;

/// Returns the stride of a tile's rows: one element more than their length, so that reading a
/// column causes no bank conflicts.
__device__ inline int tile_stride(const Args& args) {
  return args.head_size + 1;
}

__device__ inline void load_tile(const Args& args, float* tile, const float* from, int64_t stride,
                                 int rows) {
  for (int row = threadIdx.y; row < kTile; row += kSide)
    for (int i = threadIdx.x; i < args.head_size; i += kSide)
      tile[row * tile_stride(args) + i] = row < rows ? from[row * stride + i] : 0.0F;
}

/// Scores holds the four scores of a thread: two rows by two columns.
struct Scores {
  float e[2][2] = {};
};

/// Computes the thread's four elements of left right^T.
__device__ inline Scores dot_products(const Args& args, const float* left, const float* right) {
  const int stride = tile_stride(args);
  Scores s;
  for (int i = 0; i < args.head_size; ++i) {
    const float a0 = left[threadIdx.y * stride + i], a1 = left[(threadIdx.y + kSide) * stride + i];
    const float b0 = right[threadIdx.x * stride + i],
                b1 = right[(threadIdx.x + kSide) * stride + i];
    s.e[0][0] += a0 * b0;
    s.e[0][1] += a0 * b1;
    s.e[1][0] += a1 * b0;
    s.e[1][1] += a1 * b1;
  }
  return s;
}

/// Sums holds the elements of two result rows that a thread computes.
struct Sums {
  float e[2][kMaxColumns] = {};
};

/// Writes scores to shared memory, for all threads of the row (they are in one warp).
__device__ inline void share(const Scores& s, float* weights) {
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      weights[(threadIdx.y + r * kSide) * kWeightStride + threadIdx.x + c * kSide] = s.e[r][c];
  __syncwarp();
}

/// Computes sums += weights[kTile, kTile] tile.
__device__ inline void add_weighted_rows(const Args& args, Sums& sums, const float* weights,
                                         const float* tile) {
  const int stride = tile_stride(args);
  for (int k = 0; k < kTile; ++k) {
    const float w0 = weights[threadIdx.y * kWeightStride + k],
                w1 = weights[(threadIdx.y + kSide) * kWeightStride + k];
#pragma unroll
    for (int c = 0; c < kMaxColumns; ++c) {
      const int column = static_cast<int>(threadIdx.x) + c * kSide;
      if (column >= args.head_size) break;
      const float x = tile[k * stride + column];
      sums.e[0][c] += w0 * x;
      sums.e[1][c] += w1 * x;
    }
  }
}

__device__ inline void store_rows(const Args& args, const Sums& sums, float* to, int64_t stride,
                                  int rows, const float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = static_cast<int>(threadIdx.y) + r * kSide;
    if (row >= rows) continue;
#pragma unroll
    for (int c = 0; c < kMaxColumns; ++c) {
      const int column = static_cast<int>(threadIdx.x) + c * kSide;
      if (column < args.head_size) to[row * stride + column] = sums.e[r][c] * factor[r];
    }
  }
}

/// Finds the maximum over the 16 threads of a row.
__device__ inline float row_max(float x) {
#pragma unroll
  for (int step = kSide / 2; step > 0; step /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, step));
  return x;
}
__device__ inline float row_sum(float x) {
#pragma unroll
  for (int step = kSide / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

/// Query holds the numbers of a query that a thread needs. The default stands for a row that does
/// not exist: it sees no key.
struct Query {
  int at = -1;
  int lowest = 0;
  float lse = 0.0F;
  float delta = 0.0F;

  __device__ bool sees(int key) const { return key <= at && key >= lowest; }
};

__device__ inline Query query_of(const Args& args, int row, int head, int at, bool backward) {
  if (at >= args.sequence_length) return {};
  const int64_t token = static_cast<int64_t>(row) * args.sequence_length + at,
                statistic = head * args.tokens + token;
  if (!backward) return {at, args.lowest[token], 0.0F, 0.0F};
  return {at, args.lowest[token], args.lse[statistic], args.delta[statistic]};
}

__device__ inline int rows_from(const Args& args, int first) {
  return min(kTile, args.sequence_length - first);
}
__device__ inline int64_t token_at(const Args& args, int row, int t) {
  return static_cast<int64_t>(row) * args.sequence_length + t;
}
/// Finds the first key tile that the query tile at `first` may need.
__device__ inline int first_key(const Args& args, int row, int first) {
  return args.first_block[row * args.blocks + first / static_cast<int>(kAttentionBlock)] *
         static_cast<int>(kAttentionBlock);
}

__global__ void __launch_bounds__(256) attention_forward(Args args) {
  const int tile = kTile * tile_stride(args);
  float* const q = shared_memory<float>();
  float* const k = q + tile;
  float* const v = k + tile;
  float* const weights = v + tile;
  const int first = blockIdx.x * kTile, head = blockIdx.y, row = blockIdx.z,
            kv_head = head / args.group;
  load_tile(args, q, args.query(token_at(args, row, first), head), args.width,
            rows_from(args, first));
  const int at = first + threadIdx.y;
  const Query query[2] = {query_of(args, row, head, at, false),
                          query_of(args, row, head, at + kSide, false)};
  float max[2] = {-kInfinity, -kInfinity}, sum[2] = {0.0F, 0.0F};
  Sums sums;
  for (int key = first_key(args, row, first); key <= first; key += kTile) {
    __syncthreads();
    const int64_t token = token_at(args, row, key);
    load_tile(args, k, args.key(token, kv_head), args.width, rows_from(args, key));
    load_tile(args, v, args.value(token, kv_head), args.width, rows_from(args, key));
    __syncthreads();
    Scores s = dot_products(args, q, k);
    with_scores(args, 1.0F, [&](auto scoring) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const bool seen = query[r].sees(key + static_cast<int>(threadIdx.x) + c * kSide);
          s.e[r][c] = seen ? scoring.score(s.e[r][c]) : -kInfinity;
        }
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = fmaxf(max[r], fmaxf(s.e[r][0], s.e[r][1]));
      largest = row_max(largest);
      const float base = largest == -kInfinity ? 0.0F : largest;
      const float shrink = expf(max[r] - base);
      max[r] = largest;
#pragma unroll
      for (int c = 0; c < 2; ++c) s.e[r][c] = expf(s.e[r][c] - base);
      sum[r] = sum[r] * shrink + s.e[r][0] + s.e[r][1];
#pragma unroll
      for (int c = 0; c < kMaxColumns; ++c) sums.e[r][c] *= shrink;
    }
    share(s, weights);
    add_weighted_rows(args, sums, weights, v);
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float total = row_sum(sum[r]);
    factor[r] = 1.0F / total;
    if (threadIdx.x == 0 && query[r].at >= 0)
      args.lse[head * args.tokens + token_at(args, row, query[r].at)] = max[r] + logf(total);
  }
  store_rows(args, sums, args.a + args.out(token_at(args, row, first), head), args.out_width,
             rows_from(args, first), factor);
}

/// Returns the gradient of a score: dS = P (dP - delta) slope, where P is its weight.
__device__ inline float score_gradient(float weight, float slope, float dp, const Query& query) {
  return weight * (dp - query.delta) * slope;
}

__global__ void __launch_bounds__(256) attention_dq(Args args) {
  const int tile = kTile * tile_stride(args);
  float* const q = shared_memory<float>();
  float* const da = q + tile;
  float* const k = da + tile;
  float* const v = k + tile;
  float* const weights = v + tile;
  const int first = blockIdx.x * kTile, head = blockIdx.y, row = blockIdx.z,
            kv_head = head / args.group;
  const int64_t own = token_at(args, row, first);
  load_tile(args, q, args.query(own, head), args.width, rows_from(args, first));
  load_tile(args, da, args.da + args.out(own, head), args.out_width, rows_from(args, first));
  const int at = first + threadIdx.y;
  const Query query[2] = {query_of(args, row, head, at, true),
                          query_of(args, row, head, at + kSide, true)};
  Sums sums;
  for (int key = first_key(args, row, first); key <= first; key += kTile) {
    __syncthreads();
    const int64_t token = token_at(args, row, key);
    load_tile(args, k, args.key(token, kv_head), args.width, rows_from(args, key));
    load_tile(args, v, args.value(token, kv_head), args.width, rows_from(args, key));
    __syncthreads();
    Scores s = dot_products(args, q, k);
    const Scores dp = dot_products(args, da, v);
    with_scores(args, 1.0F, [&](auto scoring) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const bool seen = query[r].sees(key + static_cast<int>(threadIdx.x) + c * kSide);
          const float dot = s.e[r][c];
          const float weight = seen ? expf(scoring.score(dot) - query[r].lse) : 0.0F;
          s.e[r][c] = score_gradient(weight, scoring.slope(dot), dp.e[r][c], query[r]);
        }
    });
    share(s, weights);
    add_weighted_rows(args, sums, weights, k);
  }
  const float factor[2] = {args.scale, args.scale};
  store_rows(args, sums, args.dqkv + own * args.width + head * args.head_size, args.width,
             rows_from(args, first), factor);
}

// Computes dk and dv. Here the rows of the scores are keys, and the columns are queries.
__global__ void __launch_bounds__(256) attention_dkv(Args args) {
  const int tile = kTile * tile_stride(args);
  float* const k = shared_memory<float>();
  float* const v = k + tile;
  float* const q = v + tile;
  float* const da = q + tile;
  float* const weights = da + tile;
  const int first = blockIdx.x * kTile, kv_head = blockIdx.y, row = blockIdx.z;
  const int64_t own = token_at(args, row, first);
  load_tile(args, k, args.key(own, kv_head), args.width, rows_from(args, first));
  load_tile(args, v, args.value(own, kv_head), args.width, rows_from(args, first));
  Sums dk, dv;
  for (int head = kv_head * args.group; head < (kv_head + 1) * args.group; ++head)
    for (int at = first; at < args.sequence_length; at += kTile) {
      // The first visible key never decreases along a row, because `starts` never does. So no later
      // query sees these keys.
      if (first_key(args, row, at) >= first + kTile) break;
      const int64_t token = token_at(args, row, at);
      __syncthreads();
      load_tile(args, q, args.query(token, head), args.width, rows_from(args, at));
      load_tile(args, da, args.da + args.out(token, head), args.out_width, rows_from(args, at));
      __syncthreads();
      Scores p = dot_products(args, k, q), ds = dot_products(args, v, da);
      with_scores(args, 1.0F, [&](auto scoring) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const Query query =
              query_of(args, row, head, at + static_cast<int>(threadIdx.x) + c * kSide, true);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const bool seen = query.sees(first + static_cast<int>(threadIdx.y) + r * kSide);
            const float dot = p.e[r][c];
            p.e[r][c] = seen ? expf(scoring.score(dot) - query.lse) : 0.0F;
            ds.e[r][c] = score_gradient(p.e[r][c], scoring.slope(dot), ds.e[r][c], query);
          }
        }
      });
      share(p, weights);
      add_weighted_rows(args, dv, weights, da);
      share(ds, weights);
      add_weighted_rows(args, dk, weights, q);
    }
  const float scaled[2] = {args.scale, args.scale}, one[2] = {1.0F, 1.0F};
  float* const keys = args.dqkv + own * args.width + (args.query_heads + kv_head) * args.head_size;
  store_rows(args, dk, keys, args.width, rows_from(args, first), scaled);
  store_rows(args, dv, keys + args.kv_heads * args.head_size, args.width, rows_from(args, first),
             one);
}

/// The number of tiles in shared memory besides the weights: q, k, v in forward; q, k, v and the
/// gradient in backward.
constexpr int kForwardTiles = 3, kBackwardTiles = 4;

int shared_floats(int tiles, int head_size) {
  return tiles * kTile * (head_size + 1) + kTile * kWeightStride;
}

Launch attention_launch(const Args& args, int heads, int tiles, cudaStream_t stream) {
  const int floats = shared_floats(tiles, args.head_size);
  return {
      dim3(static_cast<unsigned>(divide_up(args.sequence_length, kTile)),
           static_cast<unsigned>(heads), static_cast<unsigned>(args.tokens / args.sequence_length)),
      dim3(kSide, kSide), static_cast<size_t>(floats) * sizeof(float), stream};
}

}  // namespace

BlockSharedMemory attention_shared_f32(int64_t head_size, bool backward) {
  const int tiles = backward ? kBackwardTiles : kForwardTiles;
  return {shared_floats(tiles, static_cast<int>(head_size)) * static_cast<int64_t>(sizeof(float)),
          cat(tiles, " tiles of ", kTile, " x ", head_size + 1, " x ", sizeof(float), " bytes and ",
              kTile * kWeightStride * sizeof(float))};
}

void attention_forward_f32(const Attention& a, cudaStream_t stream) {
  const auto args = attention_args<float>(a);
  launch(attention_launch(args, args.query_heads, kForwardTiles, stream), attention_forward, args);
}

void attention_backward_f32(const Attention& a, cudaStream_t stream) {
  const auto args = attention_args<float>(a);
  launch(attention_launch(args, args.query_heads, kBackwardTiles, stream), attention_dq, args);
  launch(attention_launch(args, args.kv_heads, kBackwardTiles, stream), attention_dkv, args);
}

}  // namespace ftrun::cuda
