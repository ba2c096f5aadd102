#include "fixtures.h"

#include "data/dataset_report.h"
#include "data/loader.h"
#include "data/sequence_reader.h"
#include "data/sequence_set.h"
#include "data/step_reader.h"

#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace ftrun::testing;

namespace {

constexpr int64_t kVocab = 1000;

/// Returns `count` tokens with the ids first, first + 1, ...
std::string ids_from(int first, int count) {
  std::vector<int> ids(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = first + i;
  return raw_u16(ids);
}

SequenceSetOptions mix_options(const std::vector<double>& weights, int64_t length = 4) {
  SequenceSetOptions options;
  options.sequence_length = length;
  options.weights = weights;
  options.dtype = DType::kU16;
  return options;
}

/// Returns the first tokens of all sequences of a step, over all ranks, sorted.
std::vector<int32_t> tokens_of_step(const SequenceSet& sequences, const BatchLayout& layout,
                                    int64_t step, int64_t* counted) {
  std::vector<int32_t> tokens;
  int64_t local = 0;
  for (int64_t rank = 0; rank < layout.ranks; ++rank) {
    StepReader reader(
        sequences, layout, rank,
        sequences.make_order(true, 3, sequences.epoch_sequences(layout.global_batch(), false)),
        kVocab);
    StepBatch batch;
    reader.read(step, batch);
    *counted = batch.counted_tokens_global;
    local += batch.counted_tokens_local;
    for (const MicroBatch& one : batch.micro_batches)
      for (size_t i = 0; i < one.tokens.size();
           i += static_cast<size_t>(sequences.sequence_length()))
        tokens.push_back(one.tokens[i]);
  }
  REQUIRE(local == *counted);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace

TEST_CASE("weights count tokens that are trained on, and the largest set is read once", "[mix]") {
  TemporaryFolder folder;
  // With sequences of 4 tokens, the first set has ten sequences, the second two with all labels,
  // the third five with half of the labels.
  const std::string a = folder.write("a.bin", ids_from(0, 41)),
                    b = folder.write("b.bin", ids_from(100, 9));
  const std::string c = folder.write("c.bin", ids_from(200, 21));
  std::vector<int> trained(21);
  for (size_t i = 0; i < trained.size(); ++i) trained[i] = i % 2 == 0 ? 1 : 0;
  folder.write("c.mask", mask_bytes(trained));
  const auto taken = [&](const std::vector<double>& weights) {
    std::vector<int64_t> counts;
    const SequenceSet sequences({a, b, c}, mix_options(weights));
    for (const MixedDataSet& set : sequences.mixed_sets()) counts.push_back(set.epoch_sequences);
    return counts;
  };
  REQUIRE(taken({1, 1, 1}) == std::vector<int64_t>{10, 10, 20});  // 40, 40 and 40 tokens
  REQUIRE(taken({0.5, 0.25, 0.25}) == std::vector<int64_t>{10, 5, 10});
  REQUIRE(taken({100, 1, 1}) == std::vector<int64_t>{10, 1, 1});  // at least one of every set
  REQUIRE(taken({3, 1, 6}) == std::vector<int64_t>{10, 3, 40});
  const SequenceSet sequences({a, b, c}, mix_options({1, 1, 2}));
  REQUIRE(sequences.trained_tokens_of_sets() == std::vector<int64_t>{40, 8, 10});
  REQUIRE(sequences.epoch_sequences(1, false) == 60);
  REQUIRE(sequences.epoch_sequences(16, true) == 48);
  REQUIRE(sequences.steps_for_epochs(2, 6) == 20);
  REQUIRE(mix_lines(sequences) ==
          std::vector<std::string>{
              "data set 1 of 3: 25% of the tokens trained on, seen 1 times per epoch",
              "data set 2 of 3: 25% of the tokens trained on, seen 5 times per epoch",
              "data set 3 of 3: 50% of the tokens trained on, seen 8 times per epoch"});
}

TEST_CASE("an epoch's batches hold the tokens that the weights say", "[mix]") {
  TemporaryFolder folder;
  const SequenceSet sequences(
      {folder.write("a.bin", ids_from(0, 41)), folder.write("b.bin", ids_from(100, 9))},
      mix_options({2, 1}));
  const BatchLayout layout{.micro_batch_size = 5};
  StepReader reader(sequences, layout, 0,
                    sequences.make_order(true, 7, sequences.epoch_sequences(5, false)), kVocab);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::map<bool, int> labels;
    for (int64_t step = 0; step < 3; ++step) {
      StepBatch batch;
      reader.read(epoch * 3 + step, batch);
      for (const int32_t label : batch.micro_batches[0].labels) ++labels[label >= 100];
      REQUIRE(batch.epoch == static_cast<double>(epoch * 3 + step + 1) * 5 / 15);
    }
    REQUIRE(labels == std::map<bool, int>{{false, 40}, {true, 20}});
  }
}

TEST_CASE("every layout of ranks reads the same sequences of a mix", "[mix]") {
  TemporaryFolder folder;
  const SequenceSet sequences(
      {folder.write("a.bin", ids_from(0, 401)), folder.write("b.bin", ids_from(500, 99))},
      mix_options({1, 1}));
  for (int64_t step = 0; step < 12; ++step) {
    int64_t counted = 0;
    const auto one = tokens_of_step(sequences, {.micro_batch_size = 24}, step, &counted);
    for (const BatchLayout& layout :
         {BatchLayout{.micro_batch_size = 2, .micro_batches = 12},
          BatchLayout{.micro_batch_size = 12, .ranks = 2},
          BatchLayout{.micro_batch_size = 3, .micro_batches = 2, .ranks = 4}}) {
      int64_t same = 0;
      REQUIRE(tokens_of_step(sequences, layout, step, &same) == one);
      REQUIRE(same == counted);
    }
  }
}

TEST_CASE("a resumed loader continues with the sequences of an uninterrupted one", "[mix]") {
  TemporaryFolder folder;
  const SequenceSet sequences(
      {folder.write("a.bin", ids_from(0, 401)), folder.write("b.bin", ids_from(500, 99))},
      mix_options({1, 3}));
  LoaderOptions options;
  options.vocab_rows = kVocab;
  options.layout = {.micro_batch_size = 3, .ranks = 2};
  options.rank = 1;
  options.seed = 8;
  Loader whole(sequences, options);
  std::vector<std::vector<int32_t>> tokens;
  for (int i = 0; i < 90; ++i) tokens.push_back(whole.next().batch.micro_batches[0].tokens);
  for (const int64_t first : {1, 50, 89}) {
    options.first_step = first;
    Loader resumed(sequences, options);
    for (int64_t step = first; step < std::min<int64_t>(first + 9, 90); ++step)
      REQUIRE(resumed.next().batch.micro_batches[0].tokens == tokens[static_cast<size_t>(step)]);
  }
}

TEST_CASE("no sequence holds tokens of two data sets, whatever the packing", "[mix]") {
  TemporaryFolder folder;
  for (const auto& [name, first, documents] : {std::tuple{"a", 0, 30}, std::tuple{"b", 500, 11}}) {
    const std::vector<int32_t> lengths(static_cast<size_t>(documents), 5);
    folder.write(std::string(name) + ".bin", ids_from(first, 5 * documents));
    folder.write(std::string(name) + ".idx", MegatronIndex(lengths).bytes());
  }
  for (const auto packing :
       {SequencePacking::kConcat, SequencePacking::kDocuments, SequencePacking::kNone}) {
    SequenceSetOptions options = mix_options({1, 1}, 16);
    options.packing = packing;
    const SequenceSet sequences({folder / "a.bin", folder / "b.bin"}, options);
    SequenceReader reader(sequences, kVocab);
    MicroBatch batch;
    for (int64_t sequence = 0; sequence < sequences.size(); ++sequence) {
      const bool second = sequence >= sequences.table().first_sequences()[1];
      reader.reset(batch, 1);
      reader.fill(batch, 0, sequence);
      for (size_t i = 0; i < batch.labels.size(); ++i)
        if (batch.labels[i] != kIgnoredLabel) {
          REQUIRE((batch.labels[i] >= 500) == second);
          REQUIRE((batch.tokens[i] >= 500) == second);
        }
    }
    // The sequences of each set alone contain no tokens of the other.
    SequenceSetOptions alone = options;
    alone.weights.clear();
    const SequenceSet first({folder / "a.bin"}, alone), second({folder / "b.bin"}, alone);
    REQUIRE(sequences.table().first_sequences() ==
            std::vector<int64_t>{0, first.size(), first.size() + second.size()});
    REQUIRE(sequences.table().filled_positions() ==
            first.table().filled_positions() + second.table().filled_positions());
  }
}

TEST_CASE("a data set of a mix with nothing to train on is refused", "[mix]") {
  TemporaryFolder folder;
  const std::string a = folder.write("a.bin", ids_from(0, 41)),
                    b = folder.write("b.bin", ids_from(100, 4));
  REQUIRE(
      error_text_of([&] {
        SequenceSet({a, b}, mix_options({1, 1}));
      }) ==
      "data set 2 of the 2 in data.train has nothing to train on: 4 tokens make 0 sequences of 4, "
      "and none of their labels counts\n  remedy: remove it from data.train, lower "
      "data.sequence_length, or prepare it "
      "again with labels that count");
  REQUIRE(error_text_of([&] {
            SequenceSet({a, a}, mix_options({1e-30, 1}));
          }).find("makes an epoch of") != std::string::npos);
}
