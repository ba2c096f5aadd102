#include "base/error.h"
#include "ops/attention/gpu.cuh"
#include "kernels/cuda/tensor_core.cuh"

// Attention in bf16 and fp16 on the tensor cores, after FlashAttention-2 (Dao 2023): scores exist
// in registers, tile by tile. Four warps share each tile of keys and values, which is copied into
// shared memory while the previous tile is computed. The backward pass computes the scores twice,
// once for dq and once for dk and dv, so that no two blocks add to the same sum. D is the head size
// rounded up to 64, 128 or 256; elements above the head size are 0.
namespace ftrun::cuda {

namespace {

constexpr int kTile = kAttentionBlock;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
/// The launch bound: the number of blocks on an SM for which the compiler allots registers. With
/// three, registers would spill.
constexpr int kMinBlocksPerSm = 2;
constexpr float kLog2e = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;
constexpr float kInfinity = __builtin_inff();
/// The number of rows of a fragment's left operand.
constexpr int kFragmentRows = 16;

/// The number of groups of 16 queries that a warp processes. Two groups use each fragment of keys
/// and values twice, which halves the reads of shared memory; heads of 256 leave registers for one
/// group only.
template <int D>
inline constexpr int kQueryGroups = D <= 128 ? 2 : 1;
/// The number of queries of a block, in the kernels that loop over keys.
template <int D>
inline constexpr int kQueryRows = kWarps* kFragmentRows* kQueryGroups<D>;
/// The number of keys or queries that the backward pass copies and computes at a time. Of rows of
/// 256 elements, two copies of 16 rows fit into the shared memory of compute capability 8.6 and
/// 8.9; two copies of 32 do not.
template <int D>
inline constexpr int kPart = D < 256 ? 32 : 16;

// The functions below return this lane's places in the fragments of tensor_core.cuh: g and 2t.
__device__ inline int lane_group() {
  return threadIdx.x % 32 / 4;
}
__device__ inline int lane_column() {
  return threadIdx.x % 4 * 2;
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

/// Returns the offset in shared memory of 8 elements of a tile, from a column that is a multiple of
/// 8 on. The row permutes each eight packs (an XOR swizzle), so that the same pack of eight
/// consecutive rows lies in different banks.
template <int D>
__device__ inline int pack_place(int row, int column) {
  return row * D + column / 64 * 64 + ((column / 8 % 8) ^ (row % 8)) * 8;
}

/// LdmatrixOffsets computes a lane's ldmatrix addresses in a tile with rows of D elements. `row`
/// and `pack` are the lane's places in a block of 16 x 16 elements, whose first row and column are
/// multiples of 8 and 16. One object serves all blocks, so that few addresses stay in registers.
template <int D>
struct LdmatrixOffsets {
  int first, pack;

  __device__ LdmatrixOffsets(int row, int pack) : first(row * D), pack(pack ^ (row % 8)) {}
  __device__ int at(int row, int column) const {
    return first + row * D + column / 64 * 64 + ((column / 8 % 8) ^ pack) * 8;
  }
};
/// Returns the offsets for rows in the order of FragmentA; also for rows whose transpose is a right
/// operand.
template <int D>
__device__ inline LdmatrixOffsets<D> rows_in_order() {
  const int lane = threadIdx.x % 32;
  return {lane % 16, lane / 16};
}
/// Returns the offsets for rows that are columns of a right operand.
template <int D>
__device__ inline LdmatrixOffsets<D> rows_as_columns() {
  const int lane = threadIdx.x % 32;
  return {lane / 16 * 8 + lane % 8, lane / 8 % 2};
}

/// Loads A[16,16] = rows and columns of a tile.
template <int D, class T>
__device__ FragmentA rows_as_a(const T* tile, int row, int column) {
  const FourBlocks found = load_blocks(tile + rows_in_order<D>().at(row, column));
  return {{found.r[0], found.r[1], found.r[2], found.r[3]}};
}

/// FragmentsB holds two neighboring fragments of the right operand: those from columns n and n + 8
/// on.
struct FragmentsB {
  FragmentB left, right;
};
__device__ inline FragmentsB as_fragments(const FourBlocks& found) {
  return {{{found.r[0], found.r[1]}}, {{found.r[2], found.r[3]}}};
}

/// Loads B[16,16] = the transpose of 16 rows and columns of a tile.
template <int D, class T>
__device__ FragmentsB rows_as_b(const T* tile, int row, int column) {
  return as_fragments(load_blocks(tile + rows_as_columns<D>().at(row, column)));
}

/// Loads B[16,16] = 16 rows and columns of a tile.
template <int D, class T>
__device__ FragmentsB block_as_b(const T* tile, int row, int column) {
  return as_fragments(load_transposed_blocks(tile + rows_in_order<D>().at(row, column)));
}

/// Rounds results[16, 8 N] to T, as left operands of the next multiplication: 16 columns each.
template <class T, int N>
__device__ inline void round_results(FragmentA (&rounded)[N / 2], const FragmentC (&results)[N]) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const FragmentC &left = results[2 * i], &right = results[2 * i + 1];
    rounded[i] = {{pack<T>(left.r[0], left.r[1]), pack<T>(left.r[2], left.r[3]),
                   pack<T>(right.r[0], right.r[1]), pack<T>(right.r[2], right.r[3])}};
  }
}

/// Starts copying a tile of R rows; those from `rows` on are 0. A row is `width` elements, `stride`
/// apart. wait_for_copies() and a barrier make it readable.
template <int D, int R, class T>
__device__ void start_tile(T* tile, const T* from, int64_t stride, int rows, int width,
                           bool vectors) {
  constexpr int kPacks = D / 8, kRowsAtOnce = kThreads / kPacks;
  static_assert(kThreads % kPacks == 0 && R % kRowsAtOnce == 0);
  const int column = threadIdx.x % kPacks * 8, first = threadIdx.x / kPacks;
  const T* source = from + first * stride + column;
  if (vectors) {
#pragma unroll
    for (int row = first; row < first + R; row += kRowsAtOnce, source += kRowsAtOnce * stride) {
      const bool exists = row < rows && column < width;
      start_copy<16>(tile + pack_place<D>(row, column), exists ? source : from, exists);
    }
    return;
  }
#pragma unroll 1
  for (int row = first; row < first + R; row += kRowsAtOnce, source += kRowsAtOnce * stride) {
    T parts[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      parts[i] = row < rows && column + i < width ? source[i] : from_float<T>(0.0F);
    uint4 bits;
    memcpy(&bits, parts, sizeof bits);
    *reinterpret_cast<uint4*>(tile + pack_place<D>(row, column)) = bits;
  }
}

/// Computes left right^T: scores[g][i] has the rows from `row` + 16 g on of `left` and the rows
/// from 8 i on of `right`.
template <int D, int G, int N, class T>
__device__ void dot_products(FragmentC (&scores)[G][N], const T* left, int row, const T* right) {
  __syncwarp();  // loads may have let lanes diverge; multiplications need all of them
#pragma unroll
  for (int g = 0; g < G; ++g)
#pragma unroll
    for (int i = 0; i < N; ++i) scores[g][i] = FragmentC{};
#pragma unroll 4
  for (int k = 0; k < D; k += 16) {
    FragmentA a[G];
#pragma unroll
    for (int g = 0; g < G; ++g) a[g] = rows_as_a<D>(left, row + kFragmentRows * g, k);
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const FragmentsB b = rows_as_b<D>(right, 8 * i, k);
#pragma unroll
      for (int g = 0; g < G; ++g) {
        multiply<T>(scores[g][i], a[g], b.left);
        multiply<T>(scores[g][i + 1], a[g], b.right);
      }
    }
  }
}

/// Adds weights[g][16, 16 N] times rows of a tile, from its column `first_column` on, to sums[g].
template <int D, int G, int N, int Columns, class T>
__device__ void add_weighted_rows(FragmentC (&sums)[G][Columns], const FragmentA (&weights)[G][N],
                                  const T* tile, int first_column) {
  __syncwarp();  // loads may have let lanes diverge; multiplications need all of them
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int c = 0; c < Columns; c += 2) {
      const FragmentsB b = block_as_b<D>(tile, 16 * i, first_column + 8 * c);
#pragma unroll
      for (int g = 0; g < G; ++g) {
        multiply<T>(sums[g][c], weights[g][i], b.left);
        multiply<T>(sums[g][c + 1], weights[g][i], b.right);
      }
    }
}

/// Stores rows g and g+8 of 16 rows from `row` on in `to` (a row is `stride` elements), scaled.
/// With `vectors` two neighbors are stored at once.
template <int Columns, class T>
__device__ void store_rows(const FragmentC (&sums)[Columns], T* to, int64_t stride, int row,
                           int rows, int width, int first_column, const float (&factor)[2],
                           bool vectors) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = row + lane_group() + 8 * half;
    if (own >= rows) continue;
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
      const int column = first_column + 8 * c + lane_column();
      T* const p = to + own * stride + column;
      const float left = sums[c].r[2 * half] * factor[half],
                  right = sums[c].r[2 * half + 1] * factor[half];
      if (vectors) {
        if (column < width) *reinterpret_cast<uint32_t*>(p) = pack<T>(left, right);
      } else {
        if (column < width) p[0] = from_float<T>(left);
        if (column + 1 < width) p[1] = from_float<T>(right);
      }
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

/// TokenBlock is a block of consecutive tokens of a sequence.
struct TokenBlock {
  /// The index of the first token in its sequence and in the batch, and the number of tokens.
  int first;
  int64_t token;
  int rows;
};
/// Returns the block of at most R tokens from the sequence's token `first` on.
template <int R, class T>
__device__ TokenBlock token_block(const AttentionArgs<T>& args, int row, int first) {
  return {first, static_cast<int64_t>(row) * args.sequence_length + first,
          min(R, args.sequence_length - first)};
}

/// TileMask says whether masks (causal, documents, window) hide all scores of a tile, none, or
/// some. For some, each score is compared separately.
enum class TileMask { kAllMasked, kNoneMasked, kPartlyMasked };

/// WarpQueries describes the queries of a warp: 16 G neighbors from row `warp_row` of a block on.
/// A lane has rows g and g+8 of each 16. The members are equal in all lanes. Only partly masked
/// tiles, which are few, read the first visible key of each query.
template <int G>
struct WarpQueries {
  /// The warp's first and last query, as indices in the sequence (last < 0: none of them is
  /// computed), and the smallest and the largest first visible key of these queries.
  int first, last, least, greatest;

  template <class T>
  __device__ WarpQueries(const AttentionArgs<T>& args, const TokenBlock& own, int warp_row)
      : first(own.first + warp_row), last(-1), least(args.sequence_length), greatest(0) {
    const int own_end = min(own.rows, (warp_row / kTile + 1) * kTile);
    if (warp_row < own.rows && !args.is_covered(own.token + own_end))
      last = own.first + min(own.rows, warp_row + kFragmentRows * G) - 1;
    for (int at = warp_row + threadIdx.x % 32; at < min(own.rows, warp_row + kFragmentRows * G);
         at += 32) {
      least = min(least, args.lowest[own.token + at]);
      greatest = max(greatest, args.lowest[own.token + at]);
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      least = min(least, __shfl_xor_sync(0xffffffffU, least, step));
      greatest = max(greatest, __shfl_xor_sync(0xffffffffU, greatest, step));
    }
  }

  __device__ TileMask mask_of(int first_key, int keys) const {
    const int last_key = first_key + keys - 1;
    if (first_key > last || last_key < least) return TileMask::kAllMasked;
    return last_key <= first && first_key >= greatest ? TileMask::kNoneMasked
                                                      : TileMask::kPartlyMasked;
  }
};

/// VisibleKeys describes the keys that one query sees.
struct VisibleKeys {
  int lowest, query;

  /// Makes the keys of the query in row `at`. A row beyond the block is never stored, so its value
  /// does not matter.
  template <class T>
  __device__ VisibleKeys(const AttentionArgs<T>& args, const TokenBlock& own, int at)
      : lowest(at < own.rows ? args.lowest[own.token + at] : 0), query(own.first + at) {}
  __device__ bool has(int key) const { return key <= query && key >= lowest; }
};

/// Calls loop(scoring, masked), the loop over the scores of a tile. `scoring` computes scores in
/// units of 1 / unit; if `masked`, the loop checks for each pair whether the query sees the key.
/// All lanes of a warp take the same branch. Capped scores are always checked: their tanh costs
/// more than the check, and a second loop would double the code.
template <class T, class Loop>
__device__ void with_scores(const AttentionArgs<T>& args, float unit, TileMask mask, Loop loop) {
  with_scores(args, unit, [&](auto scoring) {
    if constexpr (std::is_same_v<decltype(scoring), ScaledScores>) {
      if (mask == TileMask::kNoneMasked) return loop(scoring, std::false_type{});
    }
    loop(scoring, std::true_type{});
  });
}

/// Returns the first key that a block of queries needs, a multiple of 64.
template <class T>
__device__ int first_key(const AttentionArgs<T>& args, int row, const TokenBlock& own) {
  const int32_t* const needed = args.first_block + row * args.blocks + own.first / kTile;
  int found = needed[0];
  for (int i = 1; i * kTile < own.rows; ++i) found = min(found, needed[i]);
  return found * kTile;
}

/// RunningSoftmax holds the state of the online softmax for a lane's rows g and g+8: the largest
/// score (as a power of 2) and the sum.
struct RunningSoftmax {
  float max[2] = {-kInfinity, -kInfinity};
  float sum[2] = {0.0F, 0.0F};

  /// Replaces scores by weights exp2(score - max), and sets `rescale` to the factors by which
  /// earlier sums must be rescaled. Rows that see nothing of this tile keep their sums.
  template <int N>
  __device__ void update(FragmentC (&scores)[N], float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = max[half];
#pragma unroll
      for (int i = 0; i < N; ++i)
        largest = fmaxf(largest, fmaxf(scores[i].r[2 * half], scores[i].r[2 * half + 1]));
      largest = quad_max(largest);
      const float base = largest == -kInfinity ? 0.0F : largest;
      rescale[half] = exp2_approx(max[half] - base);
      max[half] = largest;
      float total = 0.0F;
#pragma unroll
      for (int i = 0; i < N; ++i)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          scores[i].r[c] = exp2_approx(scores[i].r[c] - base);
          total += scores[i].r[c];
        }
      sum[half] = sum[half] * rescale[half] + total;
    }
  }
};

/// Rescales the warp's sums if any of its rows needs it. After the first tiles most rows have found
/// their largest score and need no rescaling.
template <int Columns>
__device__ void rescale_sums(FragmentC (&sums)[Columns], const float (&rescale)[2]) {
  if (__ballot_sync(0xffffffffU, rescale[0] != 1.0F || rescale[1] != 1.0F) == 0) return;
#pragma unroll
  for (int i = 0; i < Columns; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[i].r[c] *= rescale[c / 2];
}

// Computes attention for a block of queries. Keys are copied while the weighted values of the
// previous tile are added, and values while the scores are computed, so one tile of each in shared
// memory is enough.
template <int D, class T>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerSm)
    attention_forward(AttentionArgs<T> args) {
  constexpr int G = kQueryGroups<D>;
  T* const q = shared_memory<T>();
  T* const k = q + kQueryRows<D> * D;
  T* const v = k + kTile * D;
  const int block = gridDim.x - 1 - blockIdx.x, head = blockIdx.y,
            row = blockIdx.z;  // starts the longest blocks first
  const int kv_head = head / args.group, warp_row = threadIdx.x / 32 * kFragmentRows * G,
            lane_row = warp_row + lane_group();
  const TokenBlock own = token_block<kQueryRows<D>>(args, row, block * kQueryRows<D>);
  if (args.is_covered(own.token + own.rows)) return;
  const auto start_keys = [&](int from) {
    const TokenBlock keys = token_block<kTile>(args, row, from);
    start_tile<D, kTile>(k, args.key(keys.token, kv_head), args.width, keys.rows, args.head_size,
                         args.vectors);
  };
  const auto start_values = [&](int from) {
    const TokenBlock keys = token_block<kTile>(args, row, from);
    start_tile<D, kTile>(v, args.value(keys.token, kv_head), args.width, keys.rows, args.head_size,
                         args.vectors);
  };
  int first = first_key(args, row, own);
  start_tile<D, kQueryRows<D>>(q, args.query(own.token, head), args.width, own.rows, args.head_size,
                               args.vectors);
  start_keys(first);
  const WarpQueries<G> queries(args, own, warp_row);
  RunningSoftmax softmax[G];
  FragmentC sums[G][D / 8];
  for (const int end = own.first + own.rows; first < end; first += kTile) {
    wait_for_copies();
    __syncthreads();
    start_values(first);
    const TileMask mask = queries.mask_of(first, kTile);
    FragmentC scores[G][kTile / 8];
    if (mask != TileMask::kAllMasked) dot_products<D>(scores, q, warp_row, k);
    wait_for_copies();
    __syncthreads();
    if (first + kTile < end) start_keys(first + kTile);
    if (mask == TileMask::kAllMasked) continue;
    with_scores(args, kLog2e, mask, [&](auto scoring, auto masked) {
#pragma unroll
      for (int g = 0; g < G; ++g)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const VisibleKeys visible(args, own, lane_row + kFragmentRows * g + 8 * half);
#pragma unroll
          for (int i = 0; i < kTile / 8; ++i)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              float& score = scores[g][i].r[2 * half + c];
              const bool seen =
                  !decltype(masked)::value || visible.has(first + 8 * i + lane_column() + c);
              score = seen ? scoring.score(score) : -kInfinity;
            }
        }
    });
    FragmentA weights[G][kTile / 16];
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float rescale[2];
      softmax[g].update(scores[g], rescale);
      round_results<T>(weights[g], scores[g]);
      rescale_sums(sums[g], rescale);
    }
    add_weighted_rows<D>(sums, weights, v, 0);
  }
  if (queries.last < 0) return;
#pragma unroll
  for (int g = 0; g < G; ++g) {
    const int group_row = warp_row + kFragmentRows * g;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(softmax[g].sum[half]);
      factor[half] = 1.0F / sum;
      const int at = group_row + lane_group() + 8 * half;
      if (lane_column() == 0 && at < own.rows)
        args.lse[head * args.tokens + own.token + at] = (softmax[g].max[half] + log2f(sum)) * kLn2;
    }
    store_rows(sums[g], args.a + args.out(own.token, head), args.out_width, group_row, own.rows,
               args.head_size, 0, factor, args.vectors);
  }
}

// Computes dq of a block of queries. A part of keys and values is copied while the previous part is
// computed.
template <int D, class T>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerSm) attention_dq(AttentionArgs<T> args) {
  constexpr int G = kQueryGroups<D>, kKeys = kPart<D>;
  T* const q = shared_memory<T>();
  T* const da = q + kQueryRows<D> * D;
  T* const parts = da + kQueryRows<D> * D;
  const int block = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, row = blockIdx.z;
  const int kv_head = head / args.group, warp_row = threadIdx.x / 32 * kFragmentRows * G,
            lane_row = warp_row + lane_group();
  const TokenBlock own = token_block<kQueryRows<D>>(args, row, block * kQueryRows<D>);
  if (args.is_covered(own.token + own.rows)) return;
  // Two buffers alternate: one receives the next part of keys and values while the other is
  // computed.
  const auto keys_of = [&](int first) { return parts + first / kKeys % 2 * (2 * kKeys * D); };
  const auto start_part = [&](int first) {
    const TokenBlock keys = token_block<kKeys>(args, row, first);
    T* const k = keys_of(first);
    start_tile<D, kKeys>(k, args.key(keys.token, kv_head), args.width, keys.rows, args.head_size,
                         args.vectors);
    start_tile<D, kKeys>(k + kKeys * D, args.value(keys.token, kv_head), args.width, keys.rows,
                         args.head_size, args.vectors);
  };
  int first = first_key(args, row, own);
  start_tile<D, kQueryRows<D>>(q, args.query(own.token, head), args.width, own.rows, args.head_size,
                               args.vectors);
  start_tile<D, kQueryRows<D>>(da, args.da + args.out(own.token, head), args.out_width, own.rows,
                               args.head_size, args.vectors);
  start_part(first);
  const WarpQueries<G> queries(args, own, warp_row);
  float lse[G][2], delta[G][2];
#pragma unroll
  for (int g = 0; g < G; ++g)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = warp_row + kFragmentRows * g + lane_group() + 8 * half;
      // A row beyond the end computes with another row's numbers, and its result is not stored.
      const int64_t token = head * args.tokens + own.token + (at < own.rows ? at : 0);
      lse[g][half] = args.lse[token] * kLog2e;
      delta[g][half] = args.delta[token];
    }
  FragmentC sums[G][D / 8];
  for (const int end = own.first + own.rows; first < end; first += kKeys) {
    wait_for_copies();
    __syncthreads();
    if (first + kKeys < end) start_part(first + kKeys);
    const TileMask mask = queries.mask_of(first, kKeys);
    if (mask == TileMask::kAllMasked) continue;
    const T* const k = keys_of(first);
    FragmentC scores[G][kKeys / 8], dp[G][kKeys / 8];
    dot_products<D>(scores, q, warp_row, k);
    dot_products<D>(dp, da, warp_row, k + kKeys * D);
    FragmentA ds[G][kKeys / 16];
    with_scores(args, kLog2e, mask, [&](auto scoring, auto masked) {
#pragma unroll
      for (int g = 0; g < G; ++g) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const VisibleKeys visible(args, own, lane_row + kFragmentRows * g + 8 * half);
#pragma unroll
          for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const bool seen =
                  !decltype(masked)::value || visible.has(first + 8 * i + lane_column() + c);
              float& score = scores[g][i].r[2 * half + c];
              const float dot = score,
                          weight = seen ? exp2_approx(scoring.score(dot) - lse[g][half]) : 0.0F;
              score = weight * (dp[g][i].r[2 * half + c] - delta[g][half]) * scoring.slope(dot);
            }
        }
        round_results<T>(ds[g], scores[g]);
      }
    });
    add_weighted_rows<D>(sums, ds, k, 0);
  }
  if (queries.last < 0) return;
  const float factor[2] = {args.scale, args.scale};
#pragma unroll
  for (int g = 0; g < G; ++g)
    store_rows(sums[g], args.dqkv + own.token * args.width + head * args.head_size, args.width,
               warp_row + kFragmentRows * g, own.rows, args.head_size, 0, factor, args.vectors);
}

/// The number of columns of dk and dv that one block keeps in registers; larger heads take several
/// blocks.
template <int D>
inline constexpr int kOutColumns = D < 128 ? D : 128;

/// QueryStatistics holds, for each query of a part, the numbers that dk and dv depend on.
template <int D>
struct QueryStatistics {
  float lse[kPart<D>], delta[kPart<D>];
  int lowest[kPart<D>];
};

/// Returns the end of the queries that see any key of a block. `first_block` never decreases along
/// a sequence, so no later query sees one.
template <class T>
__device__ int end_of_queries(const AttentionArgs<T>& args, int row, int key_block) {
  int end = key_block + 1;
  for (;;) {
    const int block = end + static_cast<int>(threadIdx.x % 32);
    const bool sees =
        block < args.blocks && args.first_block[row * args.blocks + block] <= key_block;
    const unsigned blind = ~__ballot_sync(0xffffffffU, sees);
    end += blind == 0 ? 32 : __ffs(static_cast<int>(blind)) - 1;
    if (blind != 0) return min(end * kTile, args.sequence_length);
  }
}

// Computes dk and dv of a block of keys: the rows of the scores are keys here, the columns are
// queries. A part of queries is copied while the previous part is computed.
template <int D, class T>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerSm) attention_dkv(AttentionArgs<T> args) {
  constexpr int kQueries = kPart<D>;
  // (gcc 12 does not notice that a generic lambda reads a static variable.)
  [[maybe_unused]] __shared__ QueryStatistics<D> numbers[2];
  T* const k = shared_memory<T>();
  T* const v = k + kTile * D;
  T* const parts = v + kTile * D;
  const int key_block = blockIdx.x, row = blockIdx.z;  // the first blocks have the most work
  const int kv_head = blockIdx.y % args.kv_heads,
            first_column = blockIdx.y / args.kv_heads * kOutColumns<D>;
  const int warp_row = threadIdx.x / 32 * kFragmentRows;
  const TokenBlock own = token_block<kTile>(args, row, key_block * kTile);
  if (args.is_covered(own.token + own.rows)) return;
  const auto start_part = [&](int at, int head, int first) {
    const TokenBlock queries = token_block<kQueries>(args, row, first);
    T* const q = parts + at * (2 * kQueries * D);
    start_tile<D, kQueries>(q, args.query(queries.token, head), args.width, queries.rows,
                            args.head_size, args.vectors);
    start_tile<D, kQueries>(q + kQueries * D, args.da + args.out(queries.token, head),
                            args.out_width, queries.rows, args.head_size, args.vectors);
    // Queries beyond the end of the sequence have zeros as elements and statistics, so they add
    // nothing.
    const int i = threadIdx.x;
    if (i >= kQueries) return;
    const bool exists = i < queries.rows;
    const int64_t token = queries.token + (exists ? i : 0);
    start_copy<4>(&numbers[at].lse[i], args.lse + head * args.tokens + token, exists);
    start_copy<4>(&numbers[at].delta[i], args.delta + head * args.tokens + token, exists);
    start_copy<4>(&numbers[at].lowest[i], args.lowest + token, exists);
  };
  start_tile<D, kTile>(k, args.key(own.token, kv_head), args.width, own.rows, args.head_size,
                       args.vectors);
  start_tile<D, kTile>(v, args.value(own.token, kv_head), args.width, own.rows, args.head_size,
                       args.vectors);
  const int end = end_of_queries(args, row, key_block), last_head = (kv_head + 1) * args.group - 1;
  const int warp_key = own.first + warp_row, last_warp_key = warp_key + kFragmentRows - 1;
  FragmentC dk[1][kOutColumns<D> / 8], dv[1][kOutColumns<D> / 8];
  int head = kv_head * args.group, first = own.first;
  start_part(0, head, first);
  for (int at = 0;; at ^= 1) {
    wait_for_copies();
    __syncthreads();
    const int part = first;
    first += kQueries;
    if (first >= end) {
      first = own.first;
      ++head;
    }
    if (head <= last_head) start_part(at ^ 1, head, first);
    const int last_query = min(part + kQueries, args.sequence_length) - 1;
    const auto& of = numbers[at];
    if (last_query >= warp_key && of.lowest[0] <= last_warp_key) {
      const bool all = part >= last_warp_key && of.lowest[last_query - part] <= warp_key;
      const T* const q = parts + at * (2 * kQueries * D);
      FragmentC weights[1][kQueries / 8], ds[1][kQueries / 8];
      dot_products<D>(weights, k, warp_row, q);
      dot_products<D>(ds, v, warp_row, q + kQueries * D);
      with_scores(args, kLog2e, all ? TileMask::kNoneMasked : TileMask::kPartlyMasked,
                  [&](auto scoring, auto masked) {
#pragma unroll
                    for (int i = 0; i < kQueries / 8; ++i)
#pragma unroll
                      for (int c = 0; c < 4; ++c) {
                        const int query = 8 * i + lane_column() + c % 2,
                                  key = warp_key + lane_group() + c / 2 * 8;
                        const bool seen = !decltype(masked)::value ||
                                          (key <= part + query && key >= of.lowest[query]);
                        const float dot = weights[0][i].r[c];
                        const float weight =
                            seen ? exp2_approx(scoring.score(dot) - of.lse[query] * kLog2e) : 0.0F;
                        weights[0][i].r[c] = weight;
                        ds[0][i].r[c] =
                            weight * (ds[0][i].r[c] - of.delta[query]) * scoring.slope(dot);
                      }
                  });
      FragmentA left[1][kQueries / 16];
      round_results<T>(left[0], weights[0]);
      add_weighted_rows<D>(dv, left, q + kQueries * D, first_column);
      round_results<T>(left[0], ds[0]);
      add_weighted_rows<D>(dk, left, q, first_column);
    }
    if (head > last_head) break;
  }
  const float scaled[2] = {args.scale, args.scale}, one[2] = {1.0F, 1.0F};
  T* const keys =
      args.dqkv + own.token * args.width + (args.query_heads + kv_head) * args.head_size;
  store_rows(dk[0], keys, args.width, warp_row, own.rows, args.head_size, first_column, scaled,
             args.vectors);
  store_rows(dv[0], keys + args.kv_heads * args.head_size, args.width, warp_row, own.rows,
             args.head_size, first_column, one, args.vectors);
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

/// The number of rows of tiles in shared memory. Forward: queries, keys and values. dq: queries and
/// the gradient of their results, and two parts of keys and values. dk and dv: keys and values, and
/// two parts of queries and the gradient of their results.
template <int D>
inline constexpr int kForwardRows = kQueryRows<D> + 2 * kTile;
template <int D>
inline constexpr int kDqRows = 2 * kQueryRows<D> + 4 * kPart<D>;
template <int D>
inline constexpr int kDkvRows = 2 * kTile + 4 * kPart<D>;

/// Calls `body` with a value of the 16-bit type of `dtype`.
template <class Body>
void with_narrow_type(DType dtype, Body body) {
  if (dtype == DType::kF16)
    body(Half{});
  else
    body(Bf16{});
}

/// Returns a launch of a block for `block_rows` tokens of each sequence and `heads` heads, with
/// `shared_rows` rows of D elements in shared memory.
template <int D, class T>
Launch attention_launch(const AttentionArgs<T>& args, int block_rows, int heads, int shared_rows,
                        cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(args.tokens / args.sequence_length);
  return {dim3(blocks(divide_up(args.sequence_length, block_rows)), static_cast<unsigned>(heads),
               rows),
          kThreads, static_cast<size_t>(shared_rows) * D * sizeof(T), stream};
}

}  // namespace

BlockSharedMemory attention_shared_narrow(int64_t head_size, bool backward) {
  BlockSharedMemory found{};
  with_padded_head(head_size, [&](auto padded) {
    constexpr int D = decltype(padded)::value;
    constexpr auto kBytes = static_cast<int64_t>(D * sizeof(Bf16));
    const auto take = [&](int rows, int64_t numbers) {
      if (rows * kBytes + numbers <= found.bytes) return;
      found.bytes = rows * kBytes + numbers;
      found.text = cat(rows, " rows of ", D, " x ", sizeof(Bf16), " bytes",
                       numbers > 0 ? cat(" and ", numbers) : std::string());
    };
    if (backward) {
      take(kDqRows<D>, 0);
      take(kDkvRows<D>, static_cast<int64_t>(2 * sizeof(QueryStatistics<D>)));
    } else {
      take(kForwardRows<D>, 0);
    }
  });
  return found;
}

void attention_forward_narrow(DType dtype, const Attention& a, cudaStream_t stream) {
  with_narrow_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto args = attention_args<T>(a);
    with_padded_head(a.attrs.head_size, [&](auto padded) {
      constexpr int D = decltype(padded)::value;
      launch(attention_launch<D>(args, kQueryRows<D>, args.query_heads, kForwardRows<D>, stream),
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
      launch(attention_launch<D>(args, kQueryRows<D>, args.query_heads, kDqRows<D>, stream),
             attention_dq<D, T>, args);
      launch(attention_launch<D>(args, kTile, args.kv_heads * (D / kOutColumns<D>), kDkvRows<D>,
                                 stream),
             attention_dkv<D, T>, args);
    });
  });
}

}  // namespace ftrun::cuda
