#include "fixtures.h"

#include "data/sequence_reader.h"
#include "data/sequence_set.h"
#include "data/step_reader.h"
#include "data/validation_reader.h"

#include <algorithm>
#include <numeric>

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace ftrun::testing;

namespace {

using Ids = std::vector<int32_t>;
constexpr int64_t kBatchVocab = 50000;

MicroBatch batch_of(const SequenceSet& sequences, const std::vector<int64_t>& numbers,
                    int64_t vocab = kBatchVocab) {
  SequenceReader reader(sequences, vocab);
  MicroBatch batch;
  reader.reset(batch, static_cast<int64_t>(numbers.size()));
  for (size_t row = 0; row < numbers.size(); ++row)
    reader.fill(batch, static_cast<int64_t>(row), numbers[row]);
  return batch;
}

}  // namespace

TEST_CASE(
    "a sequence of the concat packing has labels shifted by one, and attention over all of it",
    "[batch]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(9))}, {.sequence_length = 4});
  const MicroBatch batch = batch_of(sequences, {1, 0});
  REQUIRE(batch.tokens == Ids{4, 5, 6, 7, 0, 1, 2, 3});
  REQUIRE(batch.labels == Ids{5, 6, 7, 8, 1, 2, 3, 4});
  REQUIRE(batch.positions == Ids{0, 1, 2, 3, 0, 1, 2, 3});
  REQUIRE(batch.starts == Ids{0, 0, 0, 0, 0, 0, 0, 0});
  REQUIRE(batch.counted_tokens == 8);
}

TEST_CASE("packed documents attend within themselves and have padding that does not count",
          "[batch]") {
  TemporaryFolder folder;
  folder.write("x.bin", raw_u16({10, 11, 12, 20, 21, 30, 31, 32}));
  folder.write("x.idx", MegatronIndex({3, 2, 3}).bytes());
  const SequenceSet sequences({folder / "x"},
                              {.sequence_length = 6, .packing = SequencePacking::kDocuments});
  const MicroBatch batch = batch_of(sequences, {0});
  REQUIRE(batch.tokens == Ids{10, 11, 20, 30, 31, 0});
  REQUIRE(batch.labels == Ids{11, 12, 21, 31, 32, -100});
  REQUIRE(batch.positions == Ids{0, 1, 0, 0, 1, 0});
  REQUIRE(batch.starts == Ids{0, 0, 2, 3, 3, 5});
  REQUIRE(batch.counted_tokens == 5);
}

TEST_CASE("JSONL labels are shifted together with their tokens", "[batch]") {
  TemporaryFolder folder;
  const SequenceSet sequences(
      {folder.write("d.jsonl", R"({"input_ids":[1,2,3,4],"labels":[-100,-100,3,9]})")},
      {.sequence_length = 5, .packing = SequencePacking::kNone});
  const MicroBatch batch = batch_of(sequences, {0});
  REQUIRE(batch.tokens == Ids{1, 2, 3, 0, 0});
  REQUIRE(batch.labels == Ids{-100, 3, 9, -100, -100});
  REQUIRE(batch.starts == Ids{0, 0, 0, 3, 4});
  REQUIRE(batch.counted_tokens == 2);
}

TEST_CASE("an id outside the model's vocabulary is refused with file, sequence and offset",
          "[batch]") {
  TemporaryFolder folder;
  std::vector<int> ids(40, 7);
  ids[22] = 50300;
  const std::string path = folder.write("train.bin", raw_u16(ids));
  const SequenceSet sequences({path}, {.sequence_length = 8});
  const std::string remedy = "\n  remedy: prepare the data with this model's own tokenizer";
  REQUIRE(error_text_of([&] { batch_of(sequences, {0, 1, 3}, 49152); }).empty());
  REQUIRE(error_text_of([&] { batch_of(sequences, {2}, 49152); }) ==
          path +
              ": sequence 2, token 6 (file offset 44): id 50300 is outside the model's vocabulary "
              "of 49152 ids" +
              remedy);
  REQUIRE(error_text_of([&] { batch_of(sequences, {2}, 50301); }).empty());
  REQUIRE(error_text_of([&] { batch_of(sequences, {2}, 50300); }) ==
          path +
              ": sequence 2, token 6 (file offset 44): id 50300 is outside the model's vocabulary "
              "of 50300 ids" +
              remedy);
}

TEST_CASE("an id that occurs only as a label is checked", "[batch]") {
  TemporaryFolder folder;
  const std::string path = folder.write("train.bin", raw_u16({1, 2, 3, 4, 900}));
  const SequenceSet sequences({path}, {.sequence_length = 4});
  REQUIRE(error_text_of([&] { batch_of(sequences, {0}, 100); }) ==
          path +
              ": sequence 0, token 4 (file offset 8): id 900 is outside the model's vocabulary of "
              "100 ids\n"
              "  remedy: prepare the data with this model's own tokenizer");
  const std::string lines = folder.write(
      "d.jsonl", "{\"input_ids\":[1,2]}\n{\"input_ids\":[1,2],\"labels\":[-100,700]}\n");
  const SequenceSet masked({lines}, {.sequence_length = 4, .packing = SequencePacking::kNone});
  REQUIRE(error_text_of([&] { batch_of(masked, {1}, 100); }) ==
          lines +
              ": sequence 1, token 1 (line 2, file offset 20): id 700 is outside the model's "
              "vocabulary of 100 "
              "ids\n  remedy: prepare the data with this model's own tokenizer");
}

TEST_CASE("ids that do not fit 32 bits are shown as they are in the file", "[batch]") {
  TemporaryFolder folder;
  MegatronIndex index({3}, 8);
  index.code = 5;
  folder.write("x.idx", index.bytes());
  const std::string path = folder.write("x.bin", bytes_of<int64_t>({1, int64_t{1} << 40, 2}));
  const SequenceSet sequences({path}, {.sequence_length = 2});
  REQUIRE(error_text_of([&] { batch_of(sequences, {0}); }) ==
          path +
              ": sequence 0, token 1 (file offset 8): id 1099511627776 is outside the model's "
              "vocabulary of 50000 "
              "ids\n  remedy: prepare the data with this model's own tokenizer");
  folder.write("x.bin", bytes_of<int64_t>({1, 2, -100}));
  const SequenceSet negative({path}, {.sequence_length = 2});
  REQUIRE(error_text_of([&] { batch_of(negative, {0}); }) ==
          path +
              ": sequence 0, token 2 (file offset 16): id -100 is outside the model's vocabulary "
              "of 50000 ids\n"
              "  remedy: prepare the data with this model's own tokenizer");
}

TEST_CASE("every rank knows the counted tokens of the global batch by itself", "[batch]") {
  TemporaryFolder folder;
  std::vector<int32_t> lengths;
  std::vector<int> trained;
  uint32_t state = 9;
  for (int d = 0; d < 60; ++d) {
    lengths.push_back(static_cast<int32_t>((state = state * 1664525 + 1013904223) >> 20) % 20 + 2);
    for (int32_t i = 0; i < lengths.back(); ++i)
      trained.push_back(static_cast<int>((state = state * 1664525 + 1013904223) >> 30) == 0 ? 1
                                                                                            : 0);
  }
  folder.write("x.bin", counting_u16(static_cast<int>(trained.size())));
  folder.write("x.idx", MegatronIndex(lengths).bytes());
  folder.write("x.mask", mask_bytes(trained));
  for (const auto packing :
       {SequencePacking::kConcat, SequencePacking::kDocuments, SequencePacking::kNone}) {
    const SequenceSet sequences({folder / "x"}, {.sequence_length = 16, .packing = packing});
    for (const int64_t ranks : {1, 2, 3, 4}) {
      for (int64_t step = 0; step < 5; ++step) {
        int64_t sum = 0;
        std::vector<int64_t> token_counts;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const BatchLayout layout{.micro_batch_size = 2, .micro_batches = 2, .ranks = ranks};
          StepReader reader(sequences, layout, rank, SequenceOrder(sequences.size(), true, 3),
                            kBatchVocab);
          StepBatch batch;
          reader.read(step, batch);
          const auto& micro = batch.micro_batches;
          REQUIRE(batch.counted_tokens_local == micro[0].counted_tokens + micro[1].counted_tokens);
          for (const MicroBatch& b : micro)
            REQUIRE(b.counted_tokens == static_cast<int64_t>(b.labels.size()) -
                                            std::count(b.labels.begin(), b.labels.end(), -100));
          sum += batch.counted_tokens_local;
          token_counts.push_back(batch.counted_tokens_global);
        }
        REQUIRE(token_counts == std::vector<int64_t>(static_cast<size_t>(ranks), sum));
      }
    }
  }
}

TEST_CASE(
    "a micro-batch has the same position in the global batch in every step, and no two "
    "micro-batches "
    "share a position",
    "[batch]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(300))},
                              {.sequence_length = 8});
  for (const int64_t step : {0, 3}) {
    std::vector<int64_t> first;
    for (int64_t rank = 0; rank < 2; ++rank) {
      StepReader reader(sequences, {.micro_batch_size = 3, .micro_batches = 2, .ranks = 2}, rank,
                        SequenceOrder(sequences.size(), true, 1), kBatchVocab);
      StepBatch batch;
      reader.read(step, batch);
      for (const MicroBatch& micro_batch : batch.micro_batches)
        first.push_back(micro_batch.first_token);
    }
    REQUIRE(first == std::vector<int64_t>{0, 48, 24, 72});
  }
}

TEST_CASE("without a mask, packing concat counts tokens without reading the data", "[batch]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(100))},
                              {.sequence_length = 8});
  StepReader reader(sequences, {.micro_batch_size = 2, .micro_batches = 3, .ranks = 5}, 4,
                    SequenceOrder(sequences.size(), true, 1), kBatchVocab);
  StepBatch batch;
  reader.read(2, batch);
  REQUIRE(batch.counted_tokens_local == 48);
  REQUIRE(batch.counted_tokens_global == 240);
  REQUIRE(batch.epoch == Approx(90.0 / 12));
}

TEST_CASE("the global batch has the same tokens for any number of ranks", "[batch]") {
  TemporaryFolder folder;
  folder.write("x.bin", counting_u16(3000));
  std::vector<int32_t> lengths(100, 30);
  folder.write("x.idx", MegatronIndex(lengths).bytes());
  for (const auto packing :
       {SequencePacking::kConcat, SequencePacking::kDocuments, SequencePacking::kNone}) {
    const SequenceSet sequences({folder / "x"}, {.sequence_length = 64, .packing = packing});
    const auto tokens_of_step = [&](int64_t ranks, int64_t step) {
      std::vector<int32_t> all;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        StepReader reader(sequences, {.micro_batch_size = 24 / ranks, .ranks = ranks}, rank,
                          SequenceOrder(sequences.size(), true, 5), kBatchVocab);
        StepBatch batch;
        reader.read(step, batch);
        const MicroBatch& b = batch.micro_batches[0];
        all.insert(all.end(), b.tokens.begin(), b.tokens.end());
      }
      return all;
    };
    for (int64_t step = 0; step < 4; ++step)
      for (const int64_t ranks : {2, 3, 4, 8})
        REQUIRE(tokens_of_step(ranks, step) == tokens_of_step(1, step));
  }
}

TEST_CASE(
    "without shuffling, the micro-batches of a rank have the sequences that other trainers give "
    "them",
    "[batch]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(41))},
                              {.sequence_length = 4});
  StepReader reader(sequences, {.micro_batch_size = 2, .micro_batches = 2, .ranks = 2}, 1,
                    SequenceOrder(sequences.size(), false, 0), kBatchVocab);
  StepBatch batch;
  // Positions ((1*2 + micro_batch)*2 + 1)*2 + row = 10, 11 and 14, 15, modulo 10 sequences.
  reader.read(1, batch);
  REQUIRE(batch.micro_batches[0].tokens == Ids{0, 1, 2, 3, 4, 5, 6, 7});
  REQUIRE(batch.micro_batches[1].tokens == Ids{16, 17, 18, 19, 20, 21, 22, 23});
}

TEST_CASE("validation distributes the first sequences over ranks and fills up with padding",
          "[batch]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(41))},
                              {.sequence_length = 4});
  int64_t counted = 0;
  std::vector<int32_t> inputs;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ValidationReader reader(sequences, 5, 2, 2, rank, kBatchVocab);
    REQUIRE(reader.sequences() == 5);
    REQUIRE(reader.passes() == 2);
    REQUIRE(reader.counted_tokens_global() == 20);
    for (int64_t pass = 0; pass < 2; ++pass) {
      const MicroBatch& batch = reader.read(pass).front();
      REQUIRE(batch.tokens.size() == 8);
      counted += batch.counted_tokens;
      for (size_t i = 0; i < 8; ++i)
        if (batch.labels[i] != -100) inputs.push_back(batch.tokens[i]);
    }
  }
  REQUIRE(counted == 20);
  std::sort(inputs.begin(), inputs.end());
  Ids first(20);
  std::iota(first.begin(), first.end(), 0);
  REQUIRE(inputs == first);
  REQUIRE(ValidationReader(sequences, 500, 2, 1, 0, kBatchVocab).sequences() == 10);
  REQUIRE(ValidationReader(sequences, 0, 4, 1, 0, kBatchVocab).passes() == 3);
}

TEST_CASE("validation reads the same sequences with several micro-batches in a pass as with one",
          "[batch]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(41))},
                              {.sequence_length = 4});
  for (int64_t rank = 0; rank < 2; ++rank) {
    ValidationReader one(sequences, 9, 2, 2, rank, kBatchVocab),
        three(sequences, 9, 2, 2, rank, kBatchVocab, 3);
    REQUIRE(one.passes() == 3);
    REQUIRE(three.passes() == 1);
    const std::span<const MicroBatch> together = three.read(0);
    REQUIRE(together.size() == 3);
    for (int64_t pass = 0; pass < 3; ++pass) {
      const MicroBatch& batch = together[static_cast<size_t>(pass)];
      REQUIRE(batch.tokens == one.read(pass).front().tokens);
      REQUIRE(batch.labels == one.read(pass).front().labels);
    }
  }
  // Two passes have two micro-batches each; the second pass's last micro-batch has no sequence.
  ValidationReader two(sequences, 9, 2, 2, 1, kBatchVocab, 2);
  REQUIRE(two.passes() == 2);
  const std::span<const MicroBatch> last = two.read(1);
  REQUIRE(last[0].counted_tokens == 0);
  REQUIRE(last[1].counted_tokens == 0);
  REQUIRE(last[1].tokens.size() == 8);
}

TEST_CASE("a number of epochs becomes a whole number of steps", "[batch]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(41))},
                              {.sequence_length = 4});
  REQUIRE(sequences.steps_for_epochs(1, 4) == 3);
  REQUIRE(sequences.steps_for_epochs(2, 4) == 5);
  REQUIRE(sequences.steps_for_epochs(0.5, 1) == 5);
}
