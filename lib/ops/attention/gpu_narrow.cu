#include "base/error.h"
#include "ops/attention/gpu.cuh"
#include "kernels/cuda/tensor_core.cuh"

// Attention in bf16 and fp16 on the tensor cores, after FlashAttention-2 (Dao 2023): scores
// exist in registers, tile by tile. Tiles are 64 tokens; four warps own 16 rows of the result
// each. The backward pass runs twice over the scores, once for dq and once for dk and dv, so
// that nothing is added by several blocks. D is the head size rounded up to 64, 128 or 256; what
// is above the head size is 0.
namespace ftrun::cuda {

namespace {

constexpr int kTile = kAttentionBlock;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr float kLog2e = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;
constexpr float kInfinity = __builtin_inff();

/// Elements between rows of a tile in shared memory: 16 bytes more than its width, so that the
/// eight rows of a fragment lie in different banks.
template <int D>
inline constexpr int kStride = D + 8;
template <int D>
inline constexpr int kTileElements = kTile* kStride<D>;

// Places in the fragments of tensor_core.cuh: g and 2t of this lane.
__device__ inline int lane_group() {
  return threadIdx.x % 32 / 4;
}
__device__ inline int lane_column() {
  return threadIdx.x % 4 * 2;
}

template <class T>
__device__ inline uint32_t word(const T* p) {
  return *reinterpret_cast<const uint32_t*>(p);
}

template <class T>
__device__ inline uint32_t pack(float low, float high) {
  uint32_t bits;
  if constexpr (std::is_same_v<T, Half>) {
    const __half2 both = __floats2half2_rn(low, high);
    memcpy(&bits, &both, sizeof bits);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &both, sizeof bits);
  }
  return bits;
}

/// A[16,16] = rows and columns of a tile.
template <int D, class T>
__device__ FragmentA rows_as_a(const T* tile, int row, int column) {
  const T* const p = tile + (row + lane_group()) * kStride<D> + column + lane_column();
  return {{word(p), word(p + 8 * kStride<D>), word(p + 8), word(p + 8 * kStride<D> + 8)}};
}

/// B[16,8] = the transpose of 8 rows and 16 columns of a tile.
template <int D, class T>
__device__ FragmentB rows_as_b(const T* tile, int row, int column) {
  const T* const p = tile + (row + lane_group()) * kStride<D> + column + lane_column();
  return {{word(p), word(p + 8)}};
}

/// B[16,8] = 16 rows and 8 columns of a tile.
template <int D, class T>
__device__ FragmentB block_as_b(const T* tile, int row, int column) {
  return load_rows_as_b(tile + (row + threadIdx.x % 16) * kStride<D> + column);
}

/// Rounds two neighbouring results to T, as the left operand of the next product.
template <class T>
__device__ inline FragmentA results_as_a(const FragmentC& left, const FragmentC& right) {
  return {{pack<T>(left.r[0], left.r[1]), pack<T>(left.r[2], left.r[3]),
           pack<T>(right.r[0], right.r[1]), pack<T>(right.r[2], right.r[3])}};
}

/// Loads a tile of `rows` rows (the others 0) of `width` elements, `stride` apart.
template <int D, class T>
__device__ void load_tile(T* tile, const T* from, int64_t stride, int rows, int width,
                          bool vectors) {
  constexpr int kPacks = D / 8;
  for (int item = threadIdx.x; item < kTile * kPacks; item += kThreads) {
    const int row = item / kPacks, column = item % kPacks * 8;
    uint4 bits = {0, 0, 0, 0};
    if (row < rows && column < width) {
      const T* const p = from + row * stride + column;
      if (vectors) {
        bits = *reinterpret_cast<const uint4*>(p);
      } else {
        T parts[8];
        for (int i = 0; i < 8; ++i) parts[i] = column + i < width ? p[i] : from_float<T>(0.0F);
        memcpy(&bits, parts, sizeof bits);
      }
    }
    *reinterpret_cast<uint4*>(tile + row * kStride<D> + column) = bits;
  }
}

/// scores[i] = 16 rows of `left` from `row` against rows column + 8 i .. of `right`: left right^T.
template <int D, int N, class T>
__device__ void products(FragmentC (&scores)[N], const T* left, int row, const T* right,
                         int column) {
#pragma unroll
  for (int i = 0; i < N; ++i) scores[i] = FragmentC{};
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    const FragmentA a = rows_as_a<D>(left, row, k);
#pragma unroll
    for (int i = 0; i < N; ++i) multiply<T>(scores[i], a, rows_as_b<D>(right, column + 8 * i, k));
  }
}

/// Computes sums += weights[16, 8 N] times rows `row` .. of a tile, from its column `first_column`
/// on.
template <int D, int N, int Columns, class T>
__device__ void add_product(FragmentC (&sums)[Columns], const FragmentC (&weights)[N],
                            const T* tile, int row, int first_column) {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const FragmentA a = results_as_a<T>(weights[i], weights[i + 1]);
#pragma unroll
    for (int c = 0; c < Columns; ++c)
      multiply<T>(sums[c], a, block_as_b<D>(tile, row + 8 * i, first_column + 8 * c));
  }
}

/// Stores rows g and g+8 of a warp's 16 at `to` (a row is `stride` elements), scaled.
template <int Columns, class T>
__device__ void store_rows(const FragmentC (&sums)[Columns], T* to, int64_t stride, int row,
                           int rows, int width, int first_column, const float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = row + lane_group() + 8 * half;
    if (own >= rows) continue;
#pragma unroll
    for (int c = 0; c < Columns; ++c)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = first_column + 8 * c + lane_column() + i;
        if (column < width)
          to[own * stride + column] = from_float<T>(sums[c].r[2 * half + i] * factor[half]);
      }
  }
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

/// A block of 64 tokens of a row.
struct TokenBlock {
  /// Index in the row, and in the batch, of its first token; how many there are.
  int first;
  int64_t token;
  int rows;
};
template <class T>
__device__ TokenBlock token_block(const AttentionArgs<T>& args, int row, int block) {
  const int first = block * kTile;
  return {first, static_cast<int64_t>(row) * args.row_tokens + first,
          min(kTile, args.row_tokens - first)};
}

/// The running softmax of a warp's rows g and g+8: largest score (in powers of 2) and sum.
struct RunningSoftmax {
  float max[2] = {-kInfinity, -kInfinity};
  float sum[2] = {0.0F, 0.0F};

  /// Scores become weights; returns by what earlier results must shrink. Rows that see nothing of
  /// this tile keep their sums.
  template <int N>
  __device__ void update(FragmentC (&scores)[N], float (&shrink)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = max[half];
#pragma unroll
      for (int i = 0; i < N; ++i)
        largest = fmaxf(largest, fmaxf(scores[i].r[2 * half], scores[i].r[2 * half + 1]));
      largest = quad_max(largest);
      const float base = largest == -kInfinity ? 0.0F : largest;
      shrink[half] = exp2f(max[half] - base);
      max[half] = largest;
      float total = 0.0F;
#pragma unroll
      for (int i = 0; i < N; ++i)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          scores[i].r[c] = exp2f(scores[i].r[c] - base);
          total += scores[i].r[c];
        }
      sum[half] = sum[half] * shrink[half] + total;
    }
  }
};

template <int D, class T>
__global__ void __launch_bounds__(kThreads) attention_forward(AttentionArgs<T> args) {
  T* const q = shared_memory<T>();
  T* const k = q + kTileElements<D>;
  T* const v = k + kTileElements<D>;
  const int block = args.blocks - 1 - blockIdx.x, head = blockIdx.y,
            row = blockIdx.z;  // the longest first
  const int kv_head = head / args.group, warp_row = threadIdx.x / 32 * 16;
  const TokenBlock own = token_block(args, row, block);
  if (args.is_covered(own.token + own.rows)) return;
  load_tile<D>(q, args.query(own.token, head), args.width, own.rows, args.head_size, args.vectors);
  int query[2], lowest[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = warp_row + lane_group() + 8 * half;
    query[half] = own.first + at;
    lowest[half] = at < own.rows ? args.lowest[own.token + at] : 0;
  }
  RunningSoftmax softmax;
  FragmentC sums[D / 8];
  for (int key_block = args.first_block[row * args.blocks + block]; key_block <= block;
       ++key_block) {
    const TokenBlock keys = token_block(args, row, key_block);
    __syncthreads();
    load_tile<D>(k, args.key(keys.token, kv_head), args.width, keys.rows, args.head_size,
                 args.vectors);
    load_tile<D>(v, args.value(keys.token, kv_head), args.width, keys.rows, args.head_size,
                 args.vectors);
    __syncthreads();
    FragmentC scores[kTile / 8];
    products<D>(scores, q, warp_row, k, 0);
    with_scores(args, kLog2e, [&](auto form) {
#pragma unroll
      for (int i = 0; i < kTile / 8; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int key = keys.first + 8 * i + lane_column() + c % 2;
          const bool seen = key <= query[c / 2] && key >= lowest[c / 2];
          scores[i].r[c] = seen ? form.score(scores[i].r[c]) : -kInfinity;
        }
    });
    float shrink[2];
    softmax.update(scores, shrink);
#pragma unroll
    for (int i = 0; i < D / 8; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[i].r[c] *= shrink[c / 2];
    add_product<D>(sums, scores, v, 0, 0);
  }
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(softmax.sum[half]);
    factor[half] = 1.0F / sum;
    const int at = warp_row + lane_group() + 8 * half;
    if (lane_column() == 0 && at < own.rows)
      args.lse[head * args.tokens + own.token + at] = (softmax.max[half] + log2f(sum)) * kLn2;
  }
  store_rows(sums, args.a + args.out(own.token, head), args.out_width, warp_row, own.rows,
             args.head_size, 0, factor);
}

/// Scores of this many columns are in registers at a time in the backward pass. With 32, dq of the
/// widest heads does not fit the registers of compute capability 8.0.
constexpr int kPart = 32;
template <int D>
inline constexpr int kQueryPart = D < 256 ? kPart : 16;

// dq of a block of queries.
template <int D, class T>
__global__ void __launch_bounds__(kThreads) attention_dq(AttentionArgs<T> args) {
  T* const q = shared_memory<T>();
  T* const da = q + kTileElements<D>;
  T* const k = da + kTileElements<D>;
  T* const v = k + kTileElements<D>;
  const int block = args.blocks - 1 - blockIdx.x, head = blockIdx.y, row = blockIdx.z;
  const int kv_head = head / args.group, warp_row = threadIdx.x / 32 * 16;
  const TokenBlock own = token_block(args, row, block);
  if (args.is_covered(own.token + own.rows)) return;
  load_tile<D>(q, args.query(own.token, head), args.width, own.rows, args.head_size, args.vectors);
  load_tile<D>(da, args.da + args.out(own.token, head), args.out_width, own.rows, args.head_size,
               args.vectors);
  int query[2], lowest[2];
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = warp_row + lane_group() + 8 * half;
    const bool exists = at < own.rows;
    const int64_t token = own.token + (exists ? at : 0);
    query[half] = exists ? own.first + at : -1;  // sees nothing
    lowest[half] = args.lowest[token];
    lse[half] = args.lse[head * args.tokens + token] * kLog2e;
    delta[half] = args.delta[head * args.tokens + token];
  }
  FragmentC sums[D / 8];
  for (int key_block = args.first_block[row * args.blocks + block]; key_block <= block;
       ++key_block) {
    const TokenBlock keys = token_block(args, row, key_block);
    __syncthreads();
    load_tile<D>(k, args.key(keys.token, kv_head), args.width, keys.rows, args.head_size,
                 args.vectors);
    load_tile<D>(v, args.value(keys.token, kv_head), args.width, keys.rows, args.head_size,
                 args.vectors);
    __syncthreads();
#pragma unroll 1
    for (int part = 0; part < kTile; part += kQueryPart<D>) {
      FragmentC scores[kQueryPart<D> / 8], dp[kQueryPart<D> / 8];
      products<D>(scores, q, warp_row, k, part);
      products<D>(dp, da, warp_row, v, part);
      with_scores(args, kLog2e, [&](auto form) {
#pragma unroll
        for (int i = 0; i < kQueryPart<D> / 8; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int key = keys.first + part + 8 * i + lane_column() + c % 2, half = c / 2;
            const bool seen = key <= query[half] && key >= lowest[half];
            const float product = scores[i].r[c];
            const float weight = seen ? exp2f(form.score(product) - lse[half]) : 0.0F;
            scores[i].r[c] = weight * (dp[i].r[c] - delta[half]) * form.slope(product);
          }
      });
      add_product<D>(sums, scores, k, part, 0);
    }
  }
  const float factor[2] = {args.scale, args.scale};
  store_rows(sums, args.dqkv + own.token * args.width + head * args.head_size, args.width, warp_row,
             own.rows, args.head_size, 0, factor);
}

/// Columns of dk and dv that one block keeps in registers; larger heads take several blocks.
template <int D>
inline constexpr int kOutColumns = D < 128 ? D : 128;

// dk and dv of a block of keys: rows of the scores are keys here, columns queries.
template <int D, class T>
__global__ void __launch_bounds__(kThreads) attention_dkv(AttentionArgs<T> args) {
  // (gcc 12 does not see that a generic lambda reads what is static.)
  [[maybe_unused]] __shared__ float lse[kTile], delta[kTile];
  [[maybe_unused]] __shared__ int lowest[kTile];
  T* const k = shared_memory<T>();
  T* const v = k + kTileElements<D>;
  T* const q = v + kTileElements<D>;
  T* const da = q + kTileElements<D>;
  const int key_block = blockIdx.x, row = blockIdx.z;  // the first blocks are the longest
  const int kv_head = blockIdx.y % args.kv_heads,
            first_column = blockIdx.y / args.kv_heads * kOutColumns<D>;
  const int warp_row = threadIdx.x / 32 * 16;
  const TokenBlock own = token_block(args, row, key_block);
  if (args.is_covered(own.token + own.rows)) return;
  load_tile<D>(k, args.key(own.token, kv_head), args.width, own.rows, args.head_size, args.vectors);
  load_tile<D>(v, args.value(own.token, kv_head), args.width, own.rows, args.head_size,
               args.vectors);
  const int first_key = own.first + warp_row + lane_group();
  FragmentC dk[kOutColumns<D> / 8], dv[kOutColumns<D> / 8];
  for (int head = kv_head * args.group; head < (kv_head + 1) * args.group; ++head)
    for (int block = key_block; block < args.blocks; ++block) {
      // It never falls along a row, as starts never fall: no later query sees these keys.
      if (args.first_block[row * args.blocks + block] > key_block) break;
      const TokenBlock queries = token_block(args, row, block);
      __syncthreads();
      load_tile<D>(q, args.query(queries.token, head), args.width, queries.rows, args.head_size,
                   args.vectors);
      load_tile<D>(da, args.da + args.out(queries.token, head), args.out_width, queries.rows,
                   args.head_size, args.vectors);
      if (threadIdx.x < kTile) {
        const bool exists = static_cast<int>(threadIdx.x) < queries.rows;
        const int64_t token = queries.token + (exists ? threadIdx.x : 0);
        lse[threadIdx.x] = args.lse[head * args.tokens + token] * kLog2e;
        delta[threadIdx.x] = args.delta[head * args.tokens + token];
        lowest[threadIdx.x] = exists ? args.lowest[token] : args.row_tokens;  // sees nothing
      }
      __syncthreads();
#pragma unroll 1
      for (int part = 0; part < kTile; part += kPart) {
        FragmentC weights[kPart / 8], ds[kPart / 8];
        products<D>(weights, k, warp_row, q, part);
        products<D>(ds, v, warp_row, da, part);
        with_scores(args, kLog2e, [&](auto form) {
#pragma unroll
          for (int i = 0; i < kPart / 8; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              const int at = part + 8 * i + lane_column() + c % 2, key = first_key + c / 2 * 8;
              const bool seen = key <= queries.first + at && key >= lowest[at];
              const float product = weights[i].r[c];
              const float weight = seen ? exp2f(form.score(product) - lse[at]) : 0.0F;
              weights[i].r[c] = weight;
              ds[i].r[c] = weight * (ds[i].r[c] - delta[at]) * form.slope(product);
            }
        });
        add_product<D>(dv, weights, da, part, first_column);
        add_product<D>(dk, ds, q, part, first_column);
      }
    }
  const float scaled[2] = {args.scale, args.scale}, one[2] = {1.0F, 1.0F};
  T* const keys =
      args.dqkv + own.token * args.width + (args.query_heads + kv_head) * args.head_size;
  store_rows(dk, keys, args.width, warp_row, own.rows, args.head_size, first_column, scaled);
  store_rows(dv, keys + args.kv_heads * args.head_size, args.width, warp_row, own.rows,
             args.head_size, first_column, one);
}

template <class Body>
void with_padded_head(int64_t head_size, Body body) {
  if (head_size <= 64)
    body(std::integral_constant<int, 64>{});
  else if (head_size <= 128)
    body(std::integral_constant<int, 128>{});
  else
    body(std::integral_constant<int, 256>{});
}

/// Tiles in shared memory: q, k, v; q, k, v and the gradient.
constexpr int kForwardTiles = 3, kBackwardTiles = 4;

/// Calls `body` with a value of the type.
template <class Body>
void with_narrow_type(DType dtype, Body body) {
  if (dtype == DType::kF16)
    body(Half{});
  else
    body(Bf16{});
}

template <class T>
Launch attention_launch(const AttentionArgs<T>& args, int heads, int tiles, int tile_elements,
                        cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(args.tokens / args.row_tokens);
  return {dim3(static_cast<unsigned>(args.blocks), static_cast<unsigned>(heads), rows), kThreads,
          static_cast<size_t>(tiles) * static_cast<size_t>(tile_elements) * sizeof(T), stream};
}

}  // namespace

SharedMemory attention_shared_narrow(int64_t head_size, bool backward) {
  SharedMemory found{};
  with_padded_head(head_size, [&](auto padded) {
    constexpr int D = decltype(padded)::value;
    const int tiles = backward ? kBackwardTiles : kForwardTiles;
    // Beside the tiles, dk and dv's kernel keeps three numbers a query.
    const int64_t numbers = backward ? 3 * kTile * static_cast<int64_t>(sizeof(float)) : 0;
    found.bytes =
        static_cast<int64_t>(tiles) * kTileElements<D> * static_cast<int64_t>(sizeof(Bf16)) +
        numbers;
    found.text = cat(tiles, " tiles of ", kTile, " x ", kStride<D>, " x ", sizeof(Bf16), " bytes",
                     numbers > 0 ? cat(" and ", numbers) : std::string());
  });
  return found;
}

void attention_forward_narrow(DType dtype, const Attention& a, cudaStream_t stream) {
  with_narrow_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto args = attention_args<T>(a);
    with_padded_head(a.attrs.head_size, [&](auto padded) {
      constexpr int D = decltype(padded)::value;
      launch(attention_launch(args, args.query_heads, kForwardTiles, kTileElements<D>, stream),
             attention_forward<D, T>, args);
    });
  });
}

void attention_backward_narrow(DType dtype, const Attention& a, cudaStream_t stream) {
  with_narrow_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto args = attention_args<T>(a);
    with_padded_head(a.attrs.head_size, [&](auto padded) {
      constexpr int D = decltype(padded)::value;
      launch(attention_launch(args, args.query_heads, kBackwardTiles, kTileElements<D>, stream),
             attention_dq<D, T>, args);
      launch(attention_launch(args, args.kv_heads * (D / kOutColumns<D>), kBackwardTiles,
                              kTileElements<D>, stream),
             attention_dkv<D, T>, args);
    });
  });
}

}  // namespace ftrun::cuda
