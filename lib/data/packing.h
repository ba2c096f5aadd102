#pragma once

#include <cstdint>
#include <vector>

#include "base/sequence_packing.h"
#include "data/token_dataset.h"

namespace ftrun {

/// Piece is a run of tokens in a row: inputs are tokens first ... first+length-1 and their labels
/// the tokens one further.
struct Piece {
  int64_t first_token = 0;
  int64_t length = 0;
};

/// PackScratch holds what a thread that asks for rows keeps between calls: the block packed last.
struct PackScratch {
  int64_t block = -1;
  std::vector<Piece> pieces;
  std::vector<int32_t> row_of_piece;
  std::vector<int64_t> used;  // slots taken of each row of the block
};

/// RowTable gives the rows of a data set under one packing and sequence length T, in file order.
/// Rows are not listed in memory: kConcat computes them, the others pack a block of about 64 rows
/// when asked and keep 24 bytes a block. In kDocuments and kNone a document, or piece of one, that
/// has no trained label is left out.
class RowTable {
 public:
  /// Finds the rows. `data` must outlive this. With `apart` no row holds tokens of two of the paths
  /// that the data was opened with: the rows of the first path come first, then those of the
  /// second.
  RowTable(const TokenDataset& data, SequencePacking packing, int64_t sequence_length,
           bool apart = false);

  int64_t size() const { return rows_; }
  int64_t sequence_length() const { return length_; }
  SequencePacking packing() const { return packing_; }
  /// Lists the pieces of row r, in the order in which they lie in the row; their lengths sum to at
  /// most T.
  void pieces(int64_t row, std::vector<Piece>& out, PackScratch& scratch) const;
  /// Counts the labels of row r that count in the loss.
  int64_t counted(int64_t row, std::vector<Piece>& buffer, PackScratch& scratch) const;
  /// Sizes the buffers for any row, so that asking for rows allocates nothing.
  void reserve(std::vector<Piece>& out, PackScratch& scratch) const;
  /// Returns the first row of each set, and size(): a set is a path that the data was opened with,
  /// or all of the data.
  const std::vector<int64_t>& set_rows() const { return set_rows_; }
  /// Counts the pieces left out because none of their labels is trained.
  int64_t dropped_pieces() const { return dropped_; }
  /// Counts the input slots of all rows that hold a token (the rest is padding).
  int64_t filled_slots() const { return filled_; }

 private:
  struct Cursor {
    int64_t document = 0;
    int64_t offset = 0;  // inside the document
  };
  struct RowBlock {
    Cursor begin;
    int64_t first_row = 0;
  };
  bool next_piece(Cursor& cursor, int64_t end, Piece& piece, int64_t& dropped) const;
  void cut_stream();
  void build_blocks(int64_t first, int64_t end);
  int64_t end_of_set(int64_t document) const;
  int64_t gather_block(Cursor& cursor, PackScratch& scratch) const;
  void place_pieces(PackScratch& scratch) const;

  const TokenDataset& data_;
  SequencePacking packing_;
  int64_t length_;
  // The begin of each set's tokens or (where documents count) documents, and the end.
  std::vector<int64_t> set_begins_;
  std::vector<int64_t> set_rows_{0};
  int64_t rows_ = 0;
  int64_t dropped_ = 0;
  int64_t filled_ = 0;
  size_t most_pieces_ = 1;  // of a block
  std::vector<RowBlock> blocks_;
};

}  // namespace ftrun
