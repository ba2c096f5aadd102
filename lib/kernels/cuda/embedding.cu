#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
/// Rows of the table that one block adds up, and matching tokens it sorts at a time.
constexpr int kRows = 32;
constexpr int kMatches = 2048;
constexpr float kNan = __builtin_nanf("");

template <class T, int V>
__global__ void gather_rows(const int32_t* tokens, const T* table, T* x, int64_t width,
                            int64_t given, int64_t first_row, int64_t all_rows) {
  const int64_t token = tokens[blockIdx.x];
  const bool own = token >= first_row && token < first_row + given;
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

/// Tokens of this block's rows of the table: found in the order of the tokens, then sorted by row.
struct Matches {
  int token[kMatches];
  int row[kMatches];
  int sorted[kMatches];
  int count;
  int warp_count[kWarps];
  /// First place of a row in `sorted`.
  int first[kRows + 1];
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

/// Calls `found(place in the list, rank among the row's matches)` for each match of `row`; one warp.
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

/// Adds up the gradients of the matches, each row in the order of its tokens.
template <class T, class G>
__device__ void add_matches(const Matches& m, const T* dx, G* dtable, int64_t width, int64_t rows, bool accumulate) {
  for (int64_t task = threadIdx.x; task < rows * width; task += kThreads) {
    const int64_t row = task / width, column = task % width;
    const int last = m.first[row + 1];
    int i = m.first[row];
    if (accumulate && i == last) continue;
    float sum = 0.0F;
#pragma unroll 4
    for (; i < last; ++i) sum += to_float(dx[m.sorted[i] * width + column]);
    G& out = dtable[task];
    out = from_float<G>(accumulate ? to_float(out) + sum : sum);
  }
}

// A block owns kRows rows of the table and looks through all tokens for theirs, so nothing depends on
// the order in which blocks run.
template <class T, class G>
__global__ void scatter_rows(const int32_t* tokens, const T* dx, G* dtable, int64_t count,
                             int64_t width, int64_t vocabulary, int64_t first_token,
                             int64_t left_out, bool accumulate) {
  __shared__ Matches m;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t rows = min(static_cast<int64_t>(kRows), vocabulary - first_row);
  G* const own = dtable + first_row * width;
  if (threadIdx.x == 0) m.count = 0;
  __syncthreads();
  for (int64_t first = 0; first < count; first += kThreads) {
    append_matches(m, tokens, first, count, first_token + first_row, left_out);
    const bool more = first + kThreads < count;
    if (more && m.count + kThreads <= kMatches) continue;
    sort_matches(m);
    add_matches(m, dx, own, width, rows, accumulate);
    accumulate = true;
    if (threadIdx.x == 0) m.count = 0;  // read next behind append_matches's barrier
  }
}

}  // namespace

void embed(DType dtype, const Embed& e, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(e.width, e.table, e.x), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch(
          {blocks(e.count), static_cast<unsigned>(threads_for(e.width / V, kThreads)), 0, stream},
          gather_rows<T, V>, e.tokens, static_cast<const T*>(e.table), static_cast<T*>(e.x),
          e.width, e.given, e.rows.first_row, e.rows.all_rows);
    });
  });
}

void embed_wgrad(DType dtype, const EmbedWgrad& g, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    with_type(g.gradient_dtype, [&](auto gradient_type) {
      using T = decltype(type);
      using G = decltype(gradient_type);
      launch({blocks(divide_up(g.vocabulary, kRows)), kThreads, 0, stream}, scatter_rows<T, G>,
             g.tokens, static_cast<const T*>(g.dx), static_cast<G*>(g.dtable), g.count, g.width,
             g.vocabulary, g.first_row, g.without_gradient, g.accumulate);
    });
  });
}

}  // namespace ftrun::cuda
