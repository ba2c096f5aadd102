#include "fixtures.h"

#include "data/packing.h"
#include "data/sequence_set.h"

#include <algorithm>
#include <numeric>

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace ftrun::testing;

namespace {

/// Writes a Megatron pair of documents with these lengths, where token i has id i; returns its
/// path.
std::string write_documents(const TemporaryFolder& folder, const std::vector<int32_t>& lengths,
                            const std::vector<int>& trained = {}) {
  folder.write("x.bin", counting_u16(std::accumulate(lengths.begin(), lengths.end(), 0)));
  folder.write("x.idx", MegatronIndex(lengths).bytes());
  if (!trained.empty()) folder.write("x.mask", mask_bytes(trained));
  return folder / "x.bin";
}

using Pieces = std::vector<std::pair<int64_t, int64_t>>;  // first token, length

std::vector<Pieces> sequences_of(const SequenceTable& table) {
  std::vector<Pieces> sequences;
  std::vector<DocumentPiece> pieces;
  PackScratch scratch;
  for (int64_t s = 0; s < table.size(); ++s) {
    table.list_pieces(s, pieces, scratch);
    sequences.emplace_back();
    for (const DocumentPiece& piece : pieces)
      sequences.back().emplace_back(piece.first_token, piece.length);
  }
  return sequences;
}

std::vector<int32_t> varied_lengths(int count, int longest, uint32_t seed) {
  std::vector<int32_t> lengths;
  for (int i = 0; i < count; ++i)
    lengths.push_back(static_cast<int32_t>((seed = seed * 1664525 + 1013904223) >> 8) % longest +
                      1);
  return lengths;
}

}  // namespace

TEST_CASE("packing concat cuts the stream every T tokens and reads one more", "[packing]") {
  TemporaryFolder folder;
  const TokenDataset data({write_documents(folder, {4, 3, 6})}, {});
  REQUIRE(sequences_of(SequenceTable(data, SequencePacking::kConcat, 4)) ==
          std::vector<Pieces>{{{0, 4}}, {{4, 4}}, {{8, 4}}});
  REQUIRE(SequenceTable(data, SequencePacking::kConcat, 12).size() == 1);
  REQUIRE(SequenceTable(data, SequencePacking::kConcat, 13).size() == 0);
}

TEST_CASE("packing none gives each document a sequence of its own, cut at T", "[packing]") {
  TemporaryFolder folder;
  const TokenDataset data({write_documents(folder, {4, 1, 9, 2})}, {});
  REQUIRE(sequences_of(SequenceTable(data, SequencePacking::kNone, 4)) ==
          std::vector<Pieces>{{{0, 3}}, {{5, 4}}, {{14, 1}}});
}

TEST_CASE("packing documents packs first fit and splits documents that are longer than a sequence",
          "[packing]") {
  TemporaryFolder folder;
  // Input-label pairs per document: 5, 3, 20, 2, 1, 4. The long document becomes pieces of 8 + 8 +
  // 4.
  const TokenDataset data({write_documents(folder, {6, 4, 21, 3, 2, 5})}, {});
  REQUIRE(sequences_of(SequenceTable(data, SequencePacking::kDocuments, 8)) ==
          std::vector<Pieces>{
              {{0, 5}, {6, 3}}, {{10, 8}}, {{18, 8}}, {{26, 4}, {31, 2}, {34, 1}}, {{36, 4}}});
}

TEST_CASE("packing documents keeps every pair exactly once and wastes little", "[packing]") {
  TemporaryFolder folder;
  for (const int longest : {10, 100, 900}) {
    const std::vector<int32_t> lengths = varied_lengths(1500, longest, 5);
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    folder.write("x.bin", std::string(static_cast<size_t>(tokens * 2), '\1'));
    folder.write("x.idx", MegatronIndex(lengths).bytes());
    const TokenDataset data({folder / "x.bin"}, {});
    const SequenceTable table(data, SequencePacking::kDocuments, 256);
    std::vector<int> seen(static_cast<size_t>(tokens));
    int64_t filled = 0;
    for (const Pieces& sequence : sequences_of(table)) {
      int64_t used = 0;
      for (const auto& [first, length] : sequence) {
        used += length;
        for (int64_t i = 0; i < length; ++i) ++seen[static_cast<size_t>(first + i)];
      }
      REQUIRE(used <= 256);
      REQUIRE(used > 0);
      filled += used;
    }
    int64_t token = 0;
    for (const int32_t length : lengths) {
      for (int32_t i = 0; i < length; ++i, ++token)  // the last token of a document is no input
        if (seen[static_cast<size_t>(token)] != (i + 1 < length ? 1 : 0)) FAIL("token " << token);
    }
    REQUIRE(filled == tokens - static_cast<int64_t>(lengths.size()));
    REQUIRE(table.filled_positions() == filled);
    REQUIRE(static_cast<double>(filled) > 0.95 * static_cast<double>(table.size() * 256));
  }
}

TEST_CASE("sequences are the same, whatever the order of requests", "[packing]") {
  TemporaryFolder folder;
  const std::vector<int32_t> lengths = varied_lengths(1200, 90, 3);
  const TokenDataset data({write_documents(folder, lengths)}, {});
  for (const auto packing : {SequencePacking::kDocuments, SequencePacking::kNone}) {
    const SequenceTable table(data, packing, 64);
    const std::vector<Pieces> forward = sequences_of(table);
    REQUIRE(forward.size() > 300);  // several blocks
    PackScratch scratch;
    std::vector<DocumentPiece> pieces;
    for (int64_t i = 0; i < table.size(); ++i) {
      const int64_t s = (i * 7919) % table.size();
      table.list_pieces(s, pieces, scratch);
      Pieces sequence;
      for (const DocumentPiece& piece : pieces)
        sequence.emplace_back(piece.first_token, piece.length);
      REQUIRE(sequence == forward[static_cast<size_t>(s)]);
    }
  }
}

TEST_CASE("pieces of documents without a trained label are skipped and counted", "[packing]") {
  TemporaryFolder folder;
  // Documents 0-3 (only the first token is trained, which is never a label), 4-6 (trained) and 7-9
  // (not trained).
  const TokenDataset data({write_documents(folder, {4, 3, 3}, {1, 0, 0, 0, 0, 1, 1, 0, 0, 0})}, {});
  for (const auto packing : {SequencePacking::kDocuments, SequencePacking::kNone}) {
    const SequenceTable table(data, packing, 8);
    REQUIRE(sequences_of(table) == std::vector<Pieces>{{{4, 2}}});
    REQUIRE(table.dropped_pieces() == 2);
  }
  std::vector<DocumentPiece> pieces;
  PackScratch scratch;
  REQUIRE(SequenceTable(data, SequencePacking::kConcat, 4).count_labels(0, pieces, scratch) == 0);
  REQUIRE(SequenceTable(data, SequencePacking::kConcat, 4).count_labels(1, pieces, scratch) == 2);
}

TEST_CASE("a piece of a document never continues into the next file", "[packing]") {
  TemporaryFolder folder;
  folder.write("a.bin", counting_u16(3));
  folder.write("a.idx", MegatronIndex({3}).bytes());
  folder.write("b.bin", counting_u16(4));
  folder.write("b.idx", MegatronIndex({2, 2}).bytes());
  const TokenDataset data({folder / "a", folder / "b"}, {});
  REQUIRE(data.documents() == 3);
  REQUIRE(sequences_of(SequenceTable(data, SequencePacking::kNone, 8)) ==
          std::vector<Pieces>{{{0, 2}}, {{3, 1}}, {{5, 1}}});
  REQUIRE(sequences_of(SequenceTable(data, SequencePacking::kConcat, 6)) ==
          std::vector<Pieces>{{{0, 6}}});
}

TEST_CASE("data without a label to train on is refused before the first step", "[packing]") {
  TemporaryFolder folder;
  const auto refused = [&](const SequenceSetOptions& options) {
    return error_text_of([&] { SequenceSet({folder / "x.bin"}, options); });
  };
  const std::string path = write_documents(folder, {1, 1, 1});
  REQUIRE(refused({.sequence_length = 3}) ==
          path +
              ": has 3 tokens; one sequence of length 3 needs 4\n"
              "  remedy: lower data.sequence_length, or use more text");
  REQUIRE(refused({.sequence_length = 3, .packing = SequencePacking::kDocuments}) ==
          path +
              ": none of its 3 tokens counts in the loss: there is nothing to train on\n"
              "  remedy: write the data again with documents of at least two tokens each");
  write_documents(folder, {4, 4}, {1, 0, 0, 0, 1, 0, 0, 0});
  for (const auto packing : {SequencePacking::kDocuments, SequencePacking::kNone})
    REQUIRE(
        refused({.sequence_length = 3, .packing = packing}) ==
        path +
            ": none of its 8 tokens counts in the loss: there is nothing to train on\n"
            "  remedy: write the data again and mask only the prompts: now every label is masked");
  write_documents(folder, {4, 4}, {1, 0, 0, 0, 0, 0, 0, 0});
  REQUIRE_FALSE(refused({.sequence_length = 3}).empty());
  REQUIRE(refused({.sequence_length = 0}) ==
          "data.sequence_length is 0, expected 1 to 2^30\n"
          "  remedy: set it to the number of tokens that a sequence should have, such as 2048");
}
