#pragma once

#include <cstdint>

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// embed
//   With EmbeddingRowsAttrs the table is some rows of a larger one; tokens of other rows give
//   zeros.
//   in:  tokens I32[N], table[V,D]
//   out: x[N,D]
// embed_wgrad
//   in:  tokens I32[N], dx[N,D]
//   out: dtable[V,D]

/// EmbeddingRowsAttrs says that a table has rows [first_row, first_row + its number of rows) of a
/// matrix of `all_rows` rows.
struct EmbeddingRowsAttrs {
  int64_t first_row = 0;
  int64_t all_rows = 0;
  /// The token whose row gets no gradient in embed_wgrad from the tokens that are read; -1: none.
  int64_t token_without_gradient = -1;
  bool operator==(const EmbeddingRowsAttrs&) const = default;
};

/// Returns which rows of the vocabulary the table of an embed or embed_wgrad has. The table has
/// `rows` rows; without attributes, these are the whole vocabulary.
EmbeddingRowsAttrs table_rows_of(const Op& op, int64_t rows);

/// Makes an embed_wgrad of a table of `rows` omit the gradient of row `token`; other operations are
/// unchanged.
void leave_out_row_gradient(Op& op, int64_t rows, int64_t token);

namespace ops {
/// Reads the rows of `tokens` from `table`; `rows` says which rows of the vocabulary the table has,
/// if it does not have all.
ValueId embed(GraphBuilder& g, ValueId tokens, ValueId table, const EmbeddingRowsAttrs& rows = {});
}  // namespace ops

}  // namespace ftrun
