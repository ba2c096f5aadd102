#include "counting_new.h"
#include "fixtures.h"

#include "data/loader.h"
#include "data/step_reader.h"

#include <chrono>
#include <memory>
#include <thread>

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace ftrun::testing;

namespace {

constexpr int64_t kVocab = 65536;

LoaderOptions options_for(int64_t vocab = kVocab) {
  LoaderOptions options;
  options.vocab_rows = vocab;
  options.layout = {.micro_batch_size = 2, .micro_batches = 2, .ranks = 2};
  options.rank = 1;
  options.seed = 5;
  return options;
}

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

}  // namespace

TEST_CASE("the loader gives the same steps as the reader, from any first step", "[loader]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(2000))},
                              {.sequence_length = 16});
  for (const int64_t first : {0, 1, 77}) {
    LoaderOptions options = options_for();
    options.first_step = first;
    Loader loader(sequences, options);
    StepReader reader(sequences, options.layout, options.rank,
                      SequenceOrder(sequences.size(), true, 5), kVocab);
    for (int64_t step = first; step < first + 20; ++step) {
      REQUIRE(loader.next_step() == step);
      const Loader::FetchedBatch fetched = loader.next();
      StepBatch expected;
      reader.read(step, expected);
      REQUIRE(fetched.batch.step == step);
      REQUIRE(fetched.wait_seconds >= 0);
      REQUIRE(fetched.batch.micro_batches.size() == 2);
      for (size_t m = 0; m < 2; ++m) {
        REQUIRE(fetched.batch.micro_batches[m].tokens == expected.micro_batches[m].tokens);
        REQUIRE(fetched.batch.micro_batches[m].labels == expected.micro_batches[m].labels);
      }
      REQUIRE(fetched.batch.counted_tokens_global == expected.counted_tokens_global);
    }
  }
}

TEST_CASE("a batch stays as it is while the next ones are made", "[loader]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(2000))},
                              {.sequence_length = 16});
  LoaderOptions options = options_for();
  options.prefetched_steps = 1;
  Loader loader(sequences, options);
  for (int i = 0; i < 50; ++i) {
    const StepBatch& batch = loader.next().batch;
    const StepBatch copy = batch;
    if (i % 10 == 0) sleep_ms(5);
    REQUIRE(batch.step == i);
    REQUIRE(batch.micro_batches[1].tokens == copy.micro_batches[1].tokens);
  }
}

TEST_CASE("nothing is allocated once the buffers are warm", "[loader]") {
  TemporaryFolder folder;
  const std::string mask = mask_bytes(std::vector<int>(2000, 1));
  folder.write("x.bin", counting_u16(2000));
  folder.write("x.idx", MegatronIndex(std::vector<int32_t>(100, 20)).bytes());
  folder.write("x.mask", mask);
  std::string lines;
  for (int i = 0; i < 50; ++i)
    lines += R"({"input_ids":[1,2,3,4,5,6],"labels":[-100,2,3,4,5,6],"x":"y"})"
             "\n";
  folder.write("d.jsonl", lines);
  for (const char* name : {"x.bin", "d.jsonl"}) {
    for (const auto packing :
         {SequencePacking::kConcat, SequencePacking::kDocuments, SequencePacking::kNone}) {
      const SequenceSet sequences({folder / name}, {.sequence_length = 16, .packing = packing});
      StepReader reader(sequences, options_for().layout, options_for().rank,
                        SequenceOrder(sequences.size(), true, 1), kVocab);
      StepBatch batch;
      for (int64_t step = 0; step < 3; ++step) reader.read(step, batch);
      const int64_t before = allocations_so_far();
      for (int64_t step = 3; step < 40; ++step) reader.read(step, batch);
      const int64_t during = allocations_so_far() - before;
      INFO(name << " " << name_of(packing));
      REQUIRE(during == 0);
    }
  }
  const SequenceSet sequences({folder / "x.bin"}, {.sequence_length = 16});
  Loader loader(sequences, options_for());
  for (int i = 0; i < 8; ++i) loader.next();
  const int64_t before = allocations_so_far();
  for (int i = 0; i < 100; ++i) loader.next();
  const int64_t during = allocations_so_far() - before;
  REQUIRE(during == 0);
}

TEST_CASE("a step that is slower than the loader never waits for data", "[loader]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(60000))},
                              {.sequence_length = 512});
  const LoaderOptions options = options_for();
  Loader loader(sequences, options);
  for (int i = 0; i < 20; ++i) {
    // While the step runs, the loader prepares `prefetched_steps` steps ahead, without being
    // asked.
    for (int tries = 0; loader.ready_steps() < options.prefetched_steps && tries < 60'000; ++tries)
      sleep_ms(1);
    REQUIRE(loader.ready_steps() >= options.prefetched_steps);
    REQUIRE(loader.next().batch.step == i);
  }
}

TEST_CASE("next() throws an error of the loader's thread at its own step, and at every later call",
          "[loader]") {
  TemporaryFolder folder;
  std::vector<int> ids(200);
  for (int i = 0; i < 200; ++i) ids[static_cast<size_t>(i)] = i % 90;
  ids[100] = 900;
  const std::string path = folder.write("train.bin", raw_u16(ids));
  const SequenceSet sequences({path}, {.sequence_length = 8});
  LoaderOptions options;
  options.vocab_rows = 100;
  options.layout = {.micro_batch_size = 2};
  options.shuffle = false;
  Loader loader(sequences, options);
  for (int step = 0; step < 6; ++step) REQUIRE(loader.next().batch.step == step);
  for (int again = 0; again < 2; ++again)
    REQUIRE(error_text_of([&] { loader.next(); }) ==
            path +
                ": sequence 12, token 4 (file offset 200): id 900 is outside the model's "
                "vocabulary of 100 ids\n"
                "  remedy: prepare the data with this model's own tokenizer");
}

TEST_CASE("a file that is truncated while the loader runs causes an error message, not a signal",
          "[loader]") {
  TemporaryFolder folder;
  const std::string path = folder.write("train.bin", counting_u16(60000));
  const SequenceSet sequences({path}, {.sequence_length = 16});
  LoaderOptions options = options_for();
  options.prefetched_steps = 1;
  Loader loader(sequences, options);
  loader.next();
  sleep_ms(50);  // gives the thread time to wait for space
  std::filesystem::resize_file(path, 0);
  const std::string message = error_text_of([&] {
    for (int i = 0; i < 10; ++i) loader.next();
  });
  REQUIRE(message ==
          path +
              ": was cut from 120000 to 0 bytes while in use\n  remedy: write new data to "
              "a new file; do not change a file that a run is reading");
}

TEST_CASE("a loader can be shut down at any moment, and twice", "[loader]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(60000))},
                              {.sequence_length = 64});
  for (int i = 0; i < 50; ++i) {
    Loader loader(sequences, options_for());
    if (i % 3 == 1) loader.next();
    if (i % 3 == 2) sleep_ms(1);
    loader.shutdown();
    loader.shutdown();
  }
  Loader loader(sequences, options_for());
  loader.shutdown();
  REQUIRE_THROWS_AS(loader.next(), Error);
}

TEST_CASE("the loader ends at its last step", "[loader]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(200))},
                              {.sequence_length = 8});
  LoaderOptions options = options_for();
  options.first_step = 3;
  options.end_step = 5;
  Loader loader(sequences, options);
  REQUIRE(loader.next().batch.step == 3);
  REQUIRE(loader.next().batch.step == 4);
  REQUIRE_THROWS_AS(loader.next(), Error);
}

TEST_CASE("data that does not arrive in time is an error, not a hang", "[loader]") {
  TemporaryFolder folder;
  const SequenceSet sequences({folder.write("train.bin", counting_u16(2000))},
                              {.sequence_length = 16});
  LoaderOptions options = options_for();
  options.timeout_seconds = 0.001;
  // The thread cannot allocate memory for the first step.
  auto held = std::make_unique<HeldAllocations>();
  Loader loader(sequences, options);
  const std::string message = error_text_of([&] { loader.next(); });
  held.reset();
  REQUIRE(
      message ==
      "the data of step 0 did not arrive within 0.0s\n  remedy: check that the data's file system "
      "answers, or copy the data to a local disk");
}

TEST_CASE("a loader whose data do not arrive ends without its thread", "[loader]") {
  TemporaryFolder folder;
  // The thread that is left behind reads these data until it ends.
  static const auto* const sequences =
      new SequenceSet({folder.write("train.bin", counting_u16(2000))}, {.sequence_length = 16});
  LoaderOptions options = options_for();
  options.timeout_seconds = 0.001;
  options.patience = std::chrono::milliseconds(1);
  // The thread cannot allocate memory for the first step, as if its data did not answer.
  auto held = std::make_unique<HeldAllocations>();
  {
    Loader loader(*sequences, options);
    REQUIRE_THROWS_AS(loader.next(), Error);
  }
  held.reset();
  sleep_ms(100);  // gives the thread time to end, so that no other test counts its allocations
}

TEST_CASE("drop_last skips the sequences that do not fill a batch", "[loader]") {
  TemporaryFolder folder;
  const std::string path = folder.write("train.bin", counting_u16(41));
  const SequenceSet sequences({path}, {.sequence_length = 4});  // 10 sequences
  LoaderOptions options;
  options.vocab_rows = kVocab;
  options.layout = {.micro_batch_size = 4};
  options.shuffle = false;
  options.drop_last = true;
  Loader loader(sequences, options);
  for (const int32_t first : {0, 16, 0, 16})
    REQUIRE(loader.next().batch.micro_batches[0].tokens[0] == first);
  REQUIRE(sequences.steps_for_epochs(2, 4, true) == 4);
  options.layout = {.micro_batch_size = 11};
  REQUIRE(error_text_of([&] { Loader(sequences, options); }) ==
          path +
              ": gives 10 sequences, fewer than one global batch of 11, and dataloader_drop_last "
              "leaves "
              "out what does not fill one\n  remedy: set dataloader_drop_last: false, use a "
              "smaller batch, or use more text");
}
