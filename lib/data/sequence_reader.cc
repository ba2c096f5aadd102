#include "data/sequence_reader.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {

SequenceReader::SequenceReader(const SequenceSet& sequences, int64_t vocab_rows)
    : sequences_(sequences), vocab_rows_(vocab_rows) {
  const auto needed = static_cast<size_t>(sequences.sequence_length() + 1);
  ids_.resize(needed);
  labels_.resize(needed);
  sequences.table().reserve(pieces_, pack_scratch_);
  for (const auto& file : sequences.data().files()) {
    read_scratch_.ids.reserve(static_cast<size_t>(file->scratch_ids()));
    read_scratch_.labels.reserve(static_cast<size_t>(file->scratch_ids()));
  }
}

void SequenceReader::reset(MicroBatch& batch, int64_t count) const {
  const int64_t length = sequences_.padded_length();
  const auto size = static_cast<size_t>(count * length);
  batch.tokens.assign(size, 0);
  batch.labels.assign(size, kIgnoredLabel);
  batch.positions.assign(size, 0);
  batch.starts.resize(size);
  for (size_t i = 0; i < size; ++i)
    batch.starts[i] = static_cast<int32_t>(i % static_cast<size_t>(length));
  batch.counted_tokens = 0;
}

void SequenceReader::fill(MicroBatch& batch, int64_t batch_row, int64_t sequence) {
  sequences_.table().list_pieces(sequence, pieces_, pack_scratch_);
  const int64_t first = batch_row * sequences_.padded_length();
  int64_t offset = 0;
  for (const DocumentPiece& piece : pieces_) {
    const auto count = static_cast<size_t>(piece.length + 1);
    sequences_.data().read(piece.first_token, std::span(ids_).first(count),
                           std::span(labels_).first(count), read_scratch_);
    check_ids(sequence, offset, piece);
    fill_piece(batch, static_cast<size_t>(first + offset), offset, piece);
    offset += piece.length;
  }
}

void SequenceReader::fill_piece(MicroBatch& batch, size_t first, int64_t offset_in_row,
                                const DocumentPiece& piece) {
  const auto length = static_cast<size_t>(piece.length);
  for (size_t i = 0; i < length; ++i) {
    batch.tokens[first + i] = ids_[i];
    batch.labels[first + i] = labels_[i + 1];
    batch.positions[first + i] = static_cast<int32_t>(i);
    batch.starts[first + i] = static_cast<int32_t>(offset_in_row);
    batch.counted_tokens += labels_[i + 1] == kIgnoredLabel ? 0 : 1;
  }
}

void SequenceReader::check_ids(int64_t sequence, int64_t offset, const DocumentPiece& piece) const {
  const auto limit = static_cast<uint32_t>(std::min<int64_t>(vocab_rows_, INT32_MAX));
  for (int64_t i = 0; i <= piece.length; ++i) {
    const int32_t id = ids_[static_cast<size_t>(i)], label = labels_[static_cast<size_t>(i)];
    if (static_cast<uint32_t>(id) >= limit)
      refuse_id(sequence, offset + i, piece.first_token + i,
                sequences_.data().locate(piece.first_token + i).value);
    if (label != kIgnoredLabel && static_cast<uint32_t>(label) >= limit)
      refuse_id(sequence, offset + i, piece.first_token + i, label);
  }
}

void SequenceReader::refuse_id(int64_t sequence, int64_t token_in_sequence, int64_t token,
                               int64_t value) const {
  const TokenLocation location = sequences_.data().locate(token);
  const std::string line = location.line > 0 ? cat("line ", location.line, ", ") : "";
  throw Error(ExitCode::kBadInput,
              cat(location.file, ": sequence ", sequence, ", token ", token_in_sequence, " (", line,
                  "file offset ", location.offset, "): id ", value, " is outside the model's ",
                  "vocabulary of ", vocab_rows_, " ids"),
              "prepare the data with this model's own tokenizer");
}

}  // namespace ftrun
