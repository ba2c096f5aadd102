#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/embedding/embedding.h"

namespace ftrun::cpu {

namespace {

/// Throws for tokens outside the table. The loader refuses them earlier, but reading or writing
/// outside the table would be worse.
void check_tokens(const int32_t* tokens, int64_t count, int64_t vocabulary) {
  for (int64_t n = 0; n < count; ++n)
    if (tokens[n] < 0 || tokens[n] >= vocabulary)
      bug(cat("token ", tokens[n], " at position ", n, " of a micro-batch is outside the table of ",
              vocabulary, " rows"));
}

}  // namespace

template <class S>
void embed(const OpCall& call) {
  const int64_t count = call.in_dims(0)[0], width = call.in_dims(1)[1];
  const int32_t* const tokens = call.in<int32_t>(0);
  const S* const table = call.in<S>(1);
  S* const x = call.out<S>(0);
  const int64_t table_rows = call.in_dims(1)[0];
  const EmbeddingRowsAttrs rows = table_rows_of(call.op(), table_rows);
  check_tokens(tokens, count, rows.all_rows);
  parallel_ranges(count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t row = tokens[n] - rows.first_row;
      if (row >= 0 && row < table_rows)
        std::copy_n(table + row * width, width, x + n * width);
      else
        std::fill_n(x + n * width, width, S{});
    }
  });
}

namespace {

/// Writes the positions of the tokens whose id is in [first, end) and not `skipped_token`, sorted
/// by id; equal ids stay in their order. Returns how many there are.
int64_t sort_by_row(const int32_t* tokens, int64_t count, int64_t first, int64_t end,
                    int64_t skipped_token, int32_t* order) {
  int64_t order_size = 0;
  for (int64_t n = 0; n < count; ++n)
    if (tokens[n] >= first && tokens[n] < end && tokens[n] != skipped_token)
      order[order_size++] = static_cast<int32_t>(n);
  std::sort(order, order + order_size, [tokens](int32_t a, int32_t b) {
    return tokens[a] != tokens[b] ? tokens[a] < tokens[b] : a < b;
  });
  return order_size;
}

/// The number of columns that one thread sums at a time.
constexpr int64_t kColumns = 64;

/// Adds to each row of the table the gradients of its tokens, in the order of the tokens, and
/// rounds once. Row 0 belongs to token `first_row`.
template <class S, class G>
void add_rows(const int32_t* tokens, const int32_t* order, int64_t count, const S* dx, G* dtable,
              int64_t first_row, int64_t width, int64_t first, int64_t columns) {
  const auto& rows = vector_kernels<S>();
  const auto& table = vector_kernels<G>();
  alignas(64) Compute<S> sums[kColumns];
  for (int64_t i = 0; i < count;) {
    const int32_t token = tokens[order[i]];
    G* const row = dtable + (token - first_row) * width + first;
    table.widen(row, sums, columns);
    for (; i < count && tokens[order[i]] == token; ++i)
      rows.column_sums(dx + order[i] * width + first, sums, 1, columns);
    table.narrow(sums, row, columns);
  }
}

}  // namespace

/// Computes the gradients of the table's rows. Each thread processes some columns.
template <class S>
void embed_wgrad(const OpCall& call) {
  const int64_t count = call.in_dims(0)[0], width = call.in_dims(1)[1],
                vocabulary = call.out_dims(0)[0];
  const int32_t* const tokens = call.in<int32_t>(0);
  const S* const dx = call.in<S>(1);
  auto* const order = call.workspace<int32_t>();
  const EmbeddingRowsAttrs rows = table_rows_of(call.op(), vocabulary);
  check_tokens(tokens, count, rows.all_rows);
  const int64_t order_size = sort_by_row(tokens, count, rows.first_row, rows.first_row + vocabulary,
                                         rows.token_without_gradient, order);
  call.with_gradient<S>(0, [&]<class G>(G* dtable) {
    if (!call.accumulates())
      parallel_ranges(vocabulary * width, 1 << 16, [&](int64_t begin, int64_t end) {
        std::fill(dtable + begin, dtable + end, G{});
      });
    parallel_ranges((width + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * kColumns; first < std::min(end * kColumns, width);
           first += kColumns)
        add_rows(tokens, order, order_size, dx, dtable, rows.first_row, width, first,
                 std::min(kColumns, width - first));
    });
  });
}

FTRUN_FOR_STORAGE_TYPES(embed)
FTRUN_FOR_STORAGE_TYPES(embed_wgrad)

}  // namespace ftrun::cpu
