#include "data/packing.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {
namespace {
/// The number of rows that a block should fill. It is large enough that the half-empty rows at a
/// block's end do not matter, and small enough that packing a block again, whenever one of its rows
/// is needed, costs little.
constexpr int64_t kBlockRows = 64;
}  // namespace

RowTable::RowTable(const TokenDataset& data, SequencePacking packing, int64_t sequence_length,
                   bool separates_sets)
    : data_(data), packing_(packing), length_(sequence_length) {
  require(length_ >= 1, "the sequence length is at least 1");
  const bool concat = packing_ == SequencePacking::kConcat;
  if (separates_sets)
    set_begins_ = concat ? data_.path_tokens() : data_.path_documents();
  else
    set_begins_ = {0, concat ? data_.tokens() : data_.documents()};
  if (concat)
    cut_stream();
  else
    for (size_t set = 1; set < set_begins_.size(); ++set)
      build_blocks(set_begins_[set - 1], set_begins_[set]);
}

void RowTable::cut_stream() {
  for (size_t set = 1; set < set_begins_.size(); ++set) {
    rows_ += std::max<int64_t>(set_begins_[set] - set_begins_[set - 1] - 1, 0) / length_;
    set_rows_.push_back(rows_);
  }
  filled_ = rows_ * length_;
}

/// Returns the document after the last one of the set that contains `document`.
int64_t RowTable::end_of_set(int64_t document) const {
  return *std::upper_bound(set_begins_.begin() + 1, set_begins_.end() - 1, document);
}

/// Finds the next piece at or after the cursor, before document `end`: at most T pairs of an input
/// and its label, with at least one trained label.
bool RowTable::next_piece(Cursor& cursor, int64_t end, Piece& piece, int64_t& dropped) const {
  while (cursor.document < end) {
    const int64_t start = data_.document_start(cursor.document);
    const int64_t pairs = data_.document_start(cursor.document + 1) - start - 1;
    const int64_t left = pairs - cursor.offset;
    if (left <= 0) {
      cursor = {cursor.document + 1, 0};
      continue;
    }
    piece = {start + cursor.offset, std::min(left, length_)};
    cursor.offset = packing_ == SequencePacking::kNone ? pairs : cursor.offset + piece.length;
    if (data_.trained(piece.first_token + 1, piece.length) > 0) return true;
    ++dropped;
  }
  return false;
}

/// Fills scratch.pieces with the pieces from the cursor on, and moves the cursor to the beginning
/// of the next block. A block ends with its set at the latest. Returns the number of pieces left
/// out.
int64_t RowTable::gather_block(Cursor& cursor, PackScratch& scratch) const {
  const int64_t enough = kBlockRows * (packing_ == SequencePacking::kNone ? 1 : length_);
  const int64_t end = end_of_set(cursor.document);
  int64_t gathered = 0, dropped = 0;
  scratch.pieces.clear();
  for (Piece piece; gathered < enough && next_piece(cursor, end, piece, dropped);) {
    scratch.pieces.push_back(piece);
    gathered += packing_ == SequencePacking::kNone ? 1 : piece.length;
  }
  return dropped;
}

/// Places the pieces in the rows of this block: in document order, each in the first row with room.
void RowTable::place_pieces(PackScratch& scratch) const {
  scratch.row_of_piece.clear();
  scratch.used.clear();
  size_t first_open = 0;
  for (const Piece& piece : scratch.pieces) {
    size_t row = packing_ == SequencePacking::kNone ? scratch.used.size() : first_open;
    while (row < scratch.used.size() && scratch.used[row] + piece.length > length_) ++row;
    if (row == scratch.used.size()) scratch.used.push_back(0);
    scratch.used[row] += piece.length;
    scratch.row_of_piece.push_back(static_cast<int32_t>(row));
    while (first_open < scratch.used.size() && scratch.used[first_open] == length_) ++first_open;
  }
}

/// Builds the blocks of a set of documents.
void RowTable::build_blocks(int64_t first, int64_t end) {
  PackScratch scratch;
  Cursor cursor{first, 0};
  while (cursor.document < end) {
    const Cursor begin = cursor;
    dropped_ += gather_block(cursor, scratch);
    if (scratch.pieces.empty()) break;
    place_pieces(scratch);
    most_pieces_ = std::max(most_pieces_, scratch.pieces.size());
    blocks_.push_back({begin, rows_});
    rows_ += static_cast<int64_t>(scratch.used.size());
    for (const int64_t used : scratch.used) filled_ += used;
  }
  set_rows_.push_back(rows_);
}

void RowTable::reserve(std::vector<Piece>& out, PackScratch& scratch) const {
  out.reserve(std::min(most_pieces_, static_cast<size_t>(length_)));
  scratch.pieces.reserve(most_pieces_);
  scratch.row_of_piece.reserve(most_pieces_);
  scratch.used.reserve(most_pieces_);
}

void RowTable::list_pieces(int64_t row, std::vector<Piece>& out, PackScratch& scratch) const {
  require(row >= 0 && row < rows_, "the row lies inside the data set");
  out.clear();
  if (packing_ == SequencePacking::kConcat) {
    const auto set =
        std::upper_bound(set_rows_.begin() + 1, set_rows_.end() - 1, row) - set_rows_.begin() - 1;
    const auto s = static_cast<size_t>(set);
    out.push_back({set_begins_[s] + (row - set_rows_[s]) * length_, length_});
    return;
  }
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), row,
                                      [](int64_t r, const RowBlock& b) { return r < b.first_row; });
  const RowBlock& block = *(after - 1);
  const int64_t index = after - blocks_.begin() - 1;
  if (scratch.block != index) {
    Cursor cursor = block.begin;
    gather_block(cursor, scratch);
    place_pieces(scratch);
    scratch.block = index;
  }
  for (size_t i = 0; i < scratch.pieces.size(); ++i)
    if (scratch.row_of_piece[i] == row - block.first_row) out.push_back(scratch.pieces[i]);
}

int64_t RowTable::count_labels(int64_t row, std::vector<Piece>& buffer,
                               PackScratch& scratch) const {
  list_pieces(row, buffer, scratch);
  int64_t total = 0;
  for (const Piece& piece : buffer) total += data_.trained(piece.first_token + 1, piece.length);
  return total;
}

}  // namespace ftrun
