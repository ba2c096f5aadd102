#pragma once

#include <cstdint>
#include <vector>

#include "base/sequence_packing.h"
#include "data/token_dataset.h"

namespace ftrun {

/// DocumentPiece is a run of tokens in a sequence: its inputs are tokens first ... first+length-1,
/// and its labels are the tokens one position later.
struct DocumentPiece {
  int64_t first_token = 0;
  int64_t length = 0;
};

/// PackScratch holds the block that was packed last, which a thread keeps between calls.
struct PackScratch {
  int64_t block = -1;
  std::vector<DocumentPiece> pieces;
  std::vector<int32_t> sequence_of_piece;  // counted within the block
  std::vector<int64_t> filled_positions;   // positions of each sequence that hold a token
};

/// SequenceTable describes the sequences into which a packing divides a data set, for a sequence
/// length T, in file order. Sequences are not listed in memory. kConcat computes them; the other
/// packings pack a block of about 64 sequences when one is needed, and keep 24 bytes per block.
/// With kDocuments and kNone, a document or a piece of one that has no trained label is left out.
class SequenceTable {
 public:
  /// Finds the sequences. `data` must outlive this table. With `separates_sets` no sequence holds
  /// tokens of two of the paths with which the data was opened: the sequences of the first path
  /// come first, then those of the second.
  SequenceTable(const TokenDataset& data, SequencePacking packing, int64_t sequence_length,
                bool separates_sets = false);

  int64_t size() const { return sequences_; }
  int64_t sequence_length() const { return sequence_length_; }
  SequencePacking packing() const { return packing_; }
  /// Lists the pieces of a sequence, in the order in which they lie in it; their lengths sum to at
  /// most T.
  void list_pieces(int64_t sequence, std::vector<DocumentPiece>& out, PackScratch& scratch) const;
  /// Returns the number of labels of a sequence that count in the loss.
  int64_t count_labels(int64_t sequence, std::vector<DocumentPiece>& buffer,
                       PackScratch& scratch) const;
  /// Sizes the buffers for any sequence, so that later calls allocate nothing.
  void reserve(std::vector<DocumentPiece>& out, PackScratch& scratch) const;
  /// Returns the first sequence of each set, and size(). A set is one of the paths with which the
  /// data was opened, or all of the data.
  const std::vector<int64_t>& first_sequences() const { return first_sequences_; }
  /// Returns the number of pieces left out because none of their labels is trained.
  int64_t dropped_pieces() const { return dropped_pieces_; }
  /// Returns the number of positions of all sequences that hold a token (the rest is padding).
  int64_t filled_positions() const { return filled_positions_; }

 private:
  struct DocumentPosition {
    int64_t document = 0;
    int64_t offset = 0;  // inside the document
  };
  struct BlockStart {
    DocumentPosition begin;
    int64_t first_sequence = 0;
  };
  bool next_piece(DocumentPosition& cursor, int64_t end, DocumentPiece& piece,
                  int64_t& dropped) const;
  void cut_stream();
  void build_blocks(int64_t first, int64_t end);
  int64_t end_of_set(int64_t document) const;
  int64_t gather_block(DocumentPosition& cursor, PackScratch& scratch) const;
  void place_pieces(PackScratch& scratch) const;

  const TokenDataset& data_;
  SequencePacking packing_;
  int64_t sequence_length_;
  // The first token of each set or, unless sequences are cut from one stream, its first document;
  // and the end.
  std::vector<int64_t> set_begins_;
  std::vector<int64_t> first_sequences_{0};
  int64_t sequences_ = 0;
  int64_t dropped_pieces_ = 0;
  int64_t filled_positions_ = 0;
  size_t max_pieces_ = 1;  // of a block
  std::vector<BlockStart> blocks_;
};

}  // namespace ftrun
