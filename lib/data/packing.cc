#include "data/packing.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {
namespace {
/// The number of sequences that a block should fill. It is large enough that the half-empty
/// sequences at a block's end do not matter, and small enough that packing a block again, whenever
/// one of its sequences is needed, costs little.
constexpr int64_t kBlockSequences = 64;
}  // namespace

SequenceTable::SequenceTable(const TokenDataset& data, SequencePacking packing,
                             int64_t sequence_length, bool separates_sets)
    : data_(data), packing_(packing), sequence_length_(sequence_length) {
  require(sequence_length_ >= 1, "the sequence length is at least 1");
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

void SequenceTable::cut_stream() {
  for (size_t set = 1; set < set_begins_.size(); ++set) {
    sequences_ +=
        std::max<int64_t>(set_begins_[set] - set_begins_[set - 1] - 1, 0) / sequence_length_;
    first_sequences_.push_back(sequences_);
  }
  filled_positions_ = sequences_ * sequence_length_;
}

/// Returns the document after the last one of the set that contains `document`.
int64_t SequenceTable::end_of_set(int64_t document) const {
  return *std::upper_bound(set_begins_.begin() + 1, set_begins_.end() - 1, document);
}

/// Finds the next piece at or after the cursor, before document `end`: at most T pairs of an input
/// and its label, with at least one trained label.
bool SequenceTable::next_piece(DocumentPosition& cursor, int64_t end, DocumentPiece& piece,
                               int64_t& dropped) const {
  while (cursor.document < end) {
    const int64_t start = data_.document_start(cursor.document);
    const int64_t pairs = data_.document_start(cursor.document + 1) - start - 1;
    const int64_t left = pairs - cursor.offset;
    if (left <= 0) {
      cursor = {cursor.document + 1, 0};
      continue;
    }
    piece = {start + cursor.offset, std::min(left, sequence_length_)};
    cursor.offset = packing_ == SequencePacking::kNone ? pairs : cursor.offset + piece.length;
    if (data_.count_trained(piece.first_token + 1, piece.length) > 0) return true;
    ++dropped;
  }
  return false;
}

/// Fills scratch.pieces with the pieces from the cursor on, and moves the cursor to the beginning
/// of the next block. A block ends with its set at the latest. Returns the number of pieces left
/// out.
int64_t SequenceTable::gather_block(DocumentPosition& cursor, PackScratch& scratch) const {
  const int64_t block_size =
      kBlockSequences * (packing_ == SequencePacking::kNone ? 1 : sequence_length_);
  const int64_t end = end_of_set(cursor.document);
  int64_t gathered = 0, dropped = 0;
  scratch.pieces.clear();
  for (DocumentPiece piece; gathered < block_size && next_piece(cursor, end, piece, dropped);) {
    scratch.pieces.push_back(piece);
    gathered += packing_ == SequencePacking::kNone ? 1 : piece.length;
  }
  return dropped;
}

/// Places the pieces in the sequences of this block: in document order, each in the first sequence
/// with room.
void SequenceTable::place_pieces(PackScratch& scratch) const {
  scratch.sequence_of_piece.clear();
  scratch.filled_positions.clear();
  size_t first_open = 0;
  for (const DocumentPiece& piece : scratch.pieces) {
    size_t sequence =
        packing_ == SequencePacking::kNone ? scratch.filled_positions.size() : first_open;
    while (sequence < scratch.filled_positions.size() &&
           scratch.filled_positions[sequence] + piece.length > sequence_length_)
      ++sequence;
    if (sequence == scratch.filled_positions.size()) scratch.filled_positions.push_back(0);
    scratch.filled_positions[sequence] += piece.length;
    scratch.sequence_of_piece.push_back(static_cast<int32_t>(sequence));
    while (first_open < scratch.filled_positions.size() &&
           scratch.filled_positions[first_open] == sequence_length_)
      ++first_open;
  }
}

/// Builds the blocks of a set of documents.
void SequenceTable::build_blocks(int64_t first, int64_t end) {
  PackScratch scratch;
  DocumentPosition cursor{first, 0};
  while (cursor.document < end) {
    const DocumentPosition begin = cursor;
    dropped_pieces_ += gather_block(cursor, scratch);
    if (scratch.pieces.empty()) break;
    place_pieces(scratch);
    max_pieces_ = std::max(max_pieces_, scratch.pieces.size());
    blocks_.push_back({begin, sequences_});
    sequences_ += static_cast<int64_t>(scratch.filled_positions.size());
    for (const int64_t filled : scratch.filled_positions) filled_positions_ += filled;
  }
  first_sequences_.push_back(sequences_);
}

void SequenceTable::reserve(std::vector<DocumentPiece>& out, PackScratch& scratch) const {
  out.reserve(std::min(max_pieces_, static_cast<size_t>(sequence_length_)));
  scratch.pieces.reserve(max_pieces_);
  scratch.sequence_of_piece.reserve(max_pieces_);
  scratch.filled_positions.reserve(max_pieces_);
}

void SequenceTable::list_pieces(int64_t sequence, std::vector<DocumentPiece>& out,
                                PackScratch& scratch) const {
  require(sequence >= 0 && sequence < sequences_, "the sequence lies inside the data set");
  out.clear();
  if (packing_ == SequencePacking::kConcat) {
    const auto set =
        std::upper_bound(first_sequences_.begin() + 1, first_sequences_.end() - 1, sequence) -
        first_sequences_.begin() - 1;
    const auto s = static_cast<size_t>(set);
    out.push_back(
        {set_begins_[s] + (sequence - first_sequences_[s]) * sequence_length_, sequence_length_});
    return;
  }
  const auto after =
      std::upper_bound(blocks_.begin(), blocks_.end(), sequence,
                       [](int64_t s, const BlockStart& b) { return s < b.first_sequence; });
  const BlockStart& block = *(after - 1);
  const int64_t index = after - blocks_.begin() - 1;
  if (scratch.block != index) {
    DocumentPosition cursor = block.begin;
    gather_block(cursor, scratch);
    place_pieces(scratch);
    scratch.block = index;
  }
  for (size_t i = 0; i < scratch.pieces.size(); ++i)
    if (scratch.sequence_of_piece[i] == sequence - block.first_sequence)
      out.push_back(scratch.pieces[i]);
}

int64_t SequenceTable::count_labels(int64_t sequence, std::vector<DocumentPiece>& buffer,
                                    PackScratch& scratch) const {
  list_pieces(sequence, buffer, scratch);
  int64_t total = 0;
  for (const DocumentPiece& piece : buffer)
    total += data_.count_trained(piece.first_token + 1, piece.length);
  return total;
}

}  // namespace ftrun
