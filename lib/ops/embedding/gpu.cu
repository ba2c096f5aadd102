#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/embedding/embedding.h"
#include "ops/embedding/gpu_workspace.h"

namespace ftrun::cuda {

namespace {

/// Embed holds the arguments of embed().
struct Embed {
  const int32_t* tokens;
  const void* table;
  void* x;
  /// The table has `table_rows` rows, from rows.first_row on.
  int64_t count, width, table_rows;
  EmbeddingRowsAttrs rows;
};

/// EmbedWgrad holds the arguments of embed_wgrad().
struct EmbedWgrad {
  const int32_t* tokens;
  const void* dx;
  void* dtable;
  DType gradient_dtype;
  int64_t count, width, vocabulary;
  /// The token of row 0, and the token whose row gets no gradient, or -1.
  int64_t first_row, token_without_gradient;
  bool accumulate;
  /// The workspace as gpu_embed_workspace() lays it out; null if that needs none.
  void* workspace;
};

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
/// The number of rows of the table that one block sums, and of matching tokens that it sorts at a
/// time.
constexpr int kRows = 32;
constexpr int kMatches = 2048;
constexpr float kNan = __builtin_nanf("");

template <class T, int V>
__global__ void gather_rows(const int32_t* tokens, const T* table, T* x, int64_t width,
                            int64_t table_rows, int64_t first_row, int64_t all_rows) {
  const int64_t token = tokens[blockIdx.x];
  const bool own = token >= first_row && token < first_row + table_rows;
  const float other = token >= 0 && token < all_rows ? 0.0F : kNan;
  const T* const row = table + (own ? token - first_row : 0) * width;
  T* const out = x + blockIdx.x * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    Floats<V> v = load<V>(row + i);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = own ? v[k] : other;
    store(out + i, v);
  }
}

/// Matches holds the tokens that belong to this block's rows of the table, first in the order of
/// the tokens, then sorted by row.
struct Matches {
  int token[kMatches];
  int row[kMatches];
  int sorted[kMatches];
  int count;
  int warp_count[kWarps];
  /// The first position of each row in `sorted`.
  int first[kRows + 1];
  /// The position of a hot row's tokens in HotRows::order, and the row's last part so far; -1: it
  /// has none yet.
  int hot_place[kRows];
  int last_part[kRows];

  /// Returns whether row r has more tokens than one block adds.
  __device__ bool is_hot(int64_t r) const { return first[r + 1] - first[r] > kEmbedPart; }
};

/// HotRows holds the rows of the table that occur often: separate blocks add their tokens, one part
/// each. Blocks claim places in the lists in any order, which does not affect the bits, because a
/// row's parts are linked in the order of their tokens.
struct HotRows {
  /// The used lengths of the lists below: tokens, parts, rows. They are zero at first.
  int* used;
  /// The positions of the tokens, part by part.
  int* order;
  /// The place of each part in `order`, the number of its tokens, and the row's next part or -1.
  int* part_place;
  int* part_count;
  int* part_next;
  /// The row of the table of each hot row, and its first part.
  int* row;
  int* row_part;
  /// The sums of the parts, [parts, width].
  float* sums;
};

/// Appends the matches among tokens[first .. first + kThreads), in order. All threads call it.
__device__ inline void append_matches(Matches& m, const int32_t* tokens, int64_t first,
                                      int64_t count, int64_t first_row, int64_t left_out) {
  const int64_t n = first + threadIdx.x;
  const int64_t row = n < count && tokens[n] != left_out ? tokens[n] - first_row : -1;
  const bool match = row >= 0 && row < kRows;
  const unsigned votes = __ballot_sync(0xffffffffU, match);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) m.warp_count[warp] = __popc(votes);
  __syncthreads();
  int at = m.count + __popc(votes & ((1U << lane) - 1U));
  for (int before = 0; before < warp; ++before) at += m.warp_count[before];
  if (match) {
    m.token[at] = static_cast<int>(n);
    m.row[at] = static_cast<int>(row);
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 0; w < kWarps; ++w) m.count += m.warp_count[w];
  __syncthreads();
}

/// Calls `found(place in the list, index among the row's matches)` for each match of `row`. One
/// warp calls it.
template <class Found>
__device__ int scan_row(const Matches& m, int row, Found found) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int i = 0; i < m.count; i += 32) {
    const bool match = i + lane < m.count && m.row[i + lane] == row;
    const unsigned votes = __ballot_sync(0xffffffffU, match);
    if (match) found(i + lane, before + __popc(votes & ((1U << lane) - 1U)));
    before += __popc(votes);
  }
  return before;
}

__device__ inline void sort_matches(Matches& m) {
  const int warp = threadIdx.x / 32;
  for (int row = warp; row < kRows; row += kWarps) {
    const int count = scan_row(m, row, [](int, int) {});
    if (threadIdx.x % 32 == 0) m.first[row + 1] = count;
  }
  if (threadIdx.x == 0) m.first[0] = 0;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int row = 0; row < kRows; ++row) m.first[row + 1] += m.first[row];
  __syncthreads();
  for (int row = warp; row < kRows; row += kWarps)
    scan_row(m, row, [&](int place, int rank) { m.sorted[m.first[row] + rank] = m.token[place]; });
  __syncthreads();
}

/// Claims places for the parts of a row's tokens, and links them after the parts that the row has
/// already. One thread calls it.
__device__ inline void claim_parts(Matches& m, int r, int64_t first_row, const HotRows& hot) {
  const int count = m.first[r + 1] - m.first[r], parts = (count + kEmbedPart - 1) / kEmbedPart;
  const int place = atomicAdd(hot.used, count), part = atomicAdd(hot.used + 1, parts);
  m.hot_place[r] = place;
  if (m.last_part[r] < 0) {
    const int at = atomicAdd(hot.used + 2, 1);
    hot.row[at] = static_cast<int>(first_row) + r;
    hot.row_part[at] = part;
  } else {
    hot.part_next[m.last_part[r]] = part;
  }
  for (int p = 0; p < parts; ++p) {
    hot.part_place[part + p] = place + p * kEmbedPart;
    hot.part_count[part + p] = min(kEmbedPart, count - p * kEmbedPart);
    hot.part_next[part + p] = p + 1 < parts ? part + p + 1 : -1;
  }
  m.last_part[r] = part + parts - 1;
}

/// Lists the tokens of hot rows, which add_parts() will add. All threads call it.
__device__ inline void list_hot_rows(Matches& m, int64_t first_row, const HotRows& hot) {
  if (threadIdx.x < kRows && m.is_hot(threadIdx.x))
    claim_parts(m, static_cast<int>(threadIdx.x), first_row, hot);
  __syncthreads();
  for (int r = 0; r < kRows; ++r)
    if (m.is_hot(r))
      for (int i = m.first[r] + static_cast<int>(threadIdx.x); i < m.first[r + 1]; i += kThreads)
        hot.order[m.hot_place[r] + i - m.first[r]] = m.sorted[i];
}

/// Sums the gradients of the matches, each row in the order of its tokens, except for hot rows.
template <class T, class G, int V>
__device__ void add_matches(const Matches& m, const T* dx, G* dtable, int64_t width, int64_t rows,
                            bool accumulate) {
  const int64_t vectors = width / V;
  for (int64_t task = threadIdx.x; task < rows * vectors; task += kThreads) {
    const int64_t row = task / vectors, column = task % vectors * V;
    const int last = m.first[row + 1];
    int i = m.is_hot(row) ? last : m.first[row];
    if (accumulate && i == last) continue;
    Floats<V> sum{};
#pragma unroll 4
    for (; i < last; ++i) add_to(sum, load<V>(dx + m.sorted[i] * width + column));
    G* const out = dtable + row * width + column;
    if (accumulate) sum = plus(load<V>(out), sum);
    store(out, sum);
  }
}

// Computes the gradients of the table: a block owns kRows rows and searches all tokens for those
// that belong to its rows, so the result does not depend on the order in which blocks run.
template <class T, class G, int V>
__global__ void scatter_rows(const int32_t* tokens, const T* dx, G* dtable, int64_t count,
                             int64_t width, int64_t vocabulary, int64_t first_token,
                             int64_t left_out, bool accumulate, HotRows hot) {
  __shared__ Matches m;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t rows = min(static_cast<int64_t>(kRows), vocabulary - first_row);
  G* const own = dtable + first_row * width;
  if (threadIdx.x == 0) m.count = 0;
  if (threadIdx.x < kRows) m.last_part[threadIdx.x] = -1;
  __syncthreads();
  for (int64_t first = 0; first < count; first += kThreads) {
    append_matches(m, tokens, first, count, first_token + first_row, left_out);
    const bool more = first + kThreads < count;
    if (more && m.count + kThreads <= kMatches) continue;
    sort_matches(m);
    list_hot_rows(m, first_row, hot);
    add_matches<T, G, V>(m, dx, own, width, rows, accumulate);
    accumulate = true;
    if (threadIdx.x == 0) m.count = 0;  // next read after a barrier in append_matches()
  }
}

// Sums partial gradients: block (p, c) sums kThreads * V columns of the p-th part, in the order of
// its tokens.
template <class T, int V>
__global__ void add_parts(const T* dx, int64_t width, HotRows hot) {
  const int part = static_cast<int>(blockIdx.x);
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * V;
  if (part >= hot.used[1] || column >= width) return;
  const int* const tokens = hot.order + hot.part_place[part];
  const int count = hot.part_count[part];
  Floats<V> sum{};
#pragma unroll 8
  for (int i = 0; i < count; ++i) add_to(sum, load<V>(dx + tokens[i] * width + column));
  store_whole(hot.sums + part * width + column, sum);
}

// Adds the parts of hot rows to the table: block (r, c) adds those of the r-th hot row, in their
// order.
template <class G, int V>
__global__ void join_parts(G* dtable, int64_t width, HotRows hot) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * V;
  if (static_cast<int>(blockIdx.x) >= hot.used[2] || column >= width) return;
  Floats<V> sum{};
  for (int part = hot.row_part[blockIdx.x]; part >= 0; part = hot.part_next[part])
    add_to(sum, load<V>(hot.sums + part * width + column));
  G* const out = dtable + hot.row[blockIdx.x] * width + column;
  store(out, plus(load<V>(out), sum));
}

HotRows hot_rows(const EmbedWgrad& g, const GpuEmbedWorkspace& place) {
  const auto at = [&](int64_t offset) { return static_cast<std::byte*>(g.workspace) + offset; };
  const auto list = [&](int64_t offset) { return reinterpret_cast<int*>(at(offset)); };
  return {list(place.used),       list(place.order),
          list(place.part_place), list(place.part_count),
          list(place.part_next),  list(place.row),
          list(place.row_part),   reinterpret_cast<float*>(at(place.sums))};
}

/// Calls `body` with the number of elements that the kernels above move at once, as a constant: 4
/// if both dtypes can be moved as whole words, else 1.
template <class Body>
void with_embed_vectors(const EmbedWgrad& g, Body body) {
  if (g.width % 4 == 0 && is_aligned(g.dx) && is_aligned(g.dtable))
    body(std::integral_constant<int, 4>{});
  else
    body(std::integral_constant<int, 1>{});
}

void embed(DType dtype, const Embed& e, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(e.width, e.table, e.x), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch(
          {blocks(e.count), static_cast<unsigned>(threads_for(e.width / V, kThreads)), 0, stream},
          gather_rows<T, V>, e.tokens, static_cast<const T*>(e.table), static_cast<T*>(e.x),
          e.width, e.table_rows, e.rows.first_row, e.rows.all_rows);
    });
  });
}

void embed_wgrad(DType dtype, const EmbedWgrad& g, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    with_type(g.gradient_dtype, [&](auto gradient_type) {
      using T = decltype(type);
      using G = decltype(gradient_type);
      with_embed_vectors(g, [&](auto v) {
        constexpr int V = decltype(v)::value;
        const GpuEmbedWorkspace place = gpu_embed_workspace(g.count, g.width);
        HotRows hot{};
        if (place.parts > 0) {
          hot = hot_rows(g, place);
          check(cudaMemsetAsync(hot.used, 0, kEmbedLists * sizeof(int), stream), "clearing memory");
        }
        const auto* const dx = static_cast<const T*>(g.dx);
        auto* const dtable = static_cast<G*>(g.dtable);
        launch({blocks(divide_up(g.vocabulary, kRows)), kThreads, 0, stream}, scatter_rows<T, G, V>,
               g.tokens, dx, dtable, g.count, g.width, g.vocabulary, g.first_row,
               g.token_without_gradient, g.accumulate, hot);
        const unsigned tiles = blocks(divide_up(g.width, kThreads * V));
        launch({dim3(blocks(place.parts), tiles), kThreads, 0, stream}, add_parts<T, V>, dx,
               g.width, hot);
        launch({dim3(blocks(place.rows), tiles), kThreads, 0, stream}, join_parts<G, V>, dtable,
               g.width, hot);
      });
    });
  });
}

}  // namespace

void run_embed(const Operation& op, const KernelLibraries& /*libraries*/) {
  const int64_t table_rows = op.in_dims(1)[0];
  embed(op.dtype(),
        {.tokens = op.ints_in(0),
         .table = op.in(1),
         .x = op.out(0),
         .count = op.in_dims(0)[0],
         .width = op.in_dims(1)[1],
         .table_rows = table_rows,
         .rows = table_rows_of(op.op(), table_rows)},
        op.stream());
}

void run_embed_wgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto [dtable, dtype] = op.gradient(0);
  const int64_t scratch = gpu_embed_workspace(op.in_dims(0)[0], op.in_dims(1)[1]).bytes;
  if (scratch > 0) op.require_workspace(scratch);
  const EmbeddingRowsAttrs rows = table_rows_of(op.op(), op.out_dims(0)[0]);
  embed_wgrad(op.dtype(),
              {.tokens = op.ints_in(0),
               .dx = op.in(1),
               .dtable = dtable,
               .gradient_dtype = dtype,
               .count = op.in_dims(0)[0],
               .width = op.in_dims(1)[1],
               .vocabulary = op.out_dims(0)[0],
               .first_row = rows.first_row,
               .token_without_gradient = rows.token_without_gradient,
               .accumulate = op.accumulates(),
               .workspace = scratch > 0 ? op.workspace<void>() : nullptr},
              op.stream());
}

}  // namespace ftrun::cuda
