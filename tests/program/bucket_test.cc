#include <limits>
#include <numeric>

#include "models.h"
#include "program/passes.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace fixtures;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
const int64_t kBucketSizes[] = {1, 4096, 5000, 8192, 20'000, 500'000'000, kHuge};

TEST_CASE("whatever the bucket size, every byte of the gradients is reduced exactly once") {
  std::mt19937_64 random(61);
  for (int round = 0; round < 30; ++round) {
    const Built built = build(random_config(random), Mode::kTrain, kGranularities[round % 3]);
    for (const int64_t size : kBucketSizes) {
      const Program program = built.step({.micro_batches = 1 + round % 3, .bucket_elements = size});
      INFO("bucket of " << size << "\n" << program_text(program));
      int64_t end = 0;
      // Backward order is the order of the buffer: buckets follow each other without gaps.
      for (const Range& range : gradient_reduces(program)) {
        REQUIRE(range.offset == end);
        end += range.bytes;
      }
      REQUIRE(end == program.at(buffer_named(program, buffer_names::kGradients)).bytes);
    }
  }
}

TEST_CASE("a bucket holds as many whole units as fit, and at least one") {
  std::mt19937_64 random(62);
  for (int round = 0; round < 30; ++round) {
    const Built built = build(random_config(random), Mode::kTrain, kGranularities[round % 3]);
    const FlatLayout layout = step_layouts(built.partition).gradients;
    for (const int64_t size : kBucketSizes) {
      // The naive form: units in the order of the buffer, a new bucket when the next does not fit.
      std::vector<int64_t> wanted;
      for (const UnitId id : layout.order) {
        const int64_t elements = built.partition.unit(id).padded;
        if (wanted.empty() || wanted.back() >= size || elements > size - wanted.back())
          wanted.push_back(0);
        wanted.back() += elements;
      }
      std::vector<int64_t> found;
      for (const Range& range : gradient_reduces(built.step({.bucket_elements = size})))
        found.push_back(range.bytes / 4);
      REQUIRE(found == wanted);
    }
  }
}

TEST_CASE("a bucket leaves right after the backward that writes its last gradient") {
  std::mt19937_64 random(63);
  for (int round = 0; round < 30; ++round) {
    const Built built = build(random_config(random), Mode::kTrain, kGranularities[round % 3]);
    for (const int64_t size : kBucketSizes) {
      const Program program = built.step({.micro_batches = 2, .bucket_elements = size});
      for (const size_t i : all_of(program, InstrKind::kAllReduce)) {
        const Range& range = program.instrs[i].writes[0];
        if (program.at(range.buffer).name != buffer_names::kGradients) continue;
        size_t last_write = 0;
        for (const size_t b : all_of(program, InstrKind::kBackward))
          for (const Range& write : program.instrs[b].writes)
            if (overlaps(write, range)) last_write = b;
        size_t before = i - 1;
        while (program.instrs[before].kind == InstrKind::kAllReduce) --before;
        INFO(program_text(program) << "bucket at " << i);
        REQUIRE(before == last_write);
      }
    }
  }
}

TEST_CASE("bucketing changes nothing but the reductions") {
  const Built built = build(small_config(3, true));
  const auto labels = [&](int64_t size) {
    std::string text;
    for (const Instr& instr : built.step({.micro_batches = 2, .bucket_elements = size}).instrs)
      if (instr.kind != InstrKind::kAllReduce) text += instr_label(instr) + "\n";
    return text;
  };
  CHECK(labels(1) == labels(kHuge));
  CHECK(gradient_reduces(built.step({.bucket_elements = 1})).size() == 5);
  CHECK(gradient_reduces(built.step({.bucket_elements = 8192})).size() == 3);
  CHECK(gradient_reduces(built.step({.bucket_elements = kHuge})).size() == 1);
}

TEST_CASE("reductions of ranges that do not follow each other stay apart") {
  Program program;
  program.buffers = {
      {.name = "gradients", .category = Category::kGradients, .bytes = 4096, .persistent = true}};
  for (const int64_t offset : {0, 1024, 3072, 2048}) {
    Instr instr{.kind = InstrKind::kAllReduce, .lane = Lane::kCommunication};
    instr.group = CommGroup::kData;
    instr.reads = instr.writes = {{0, offset, 1024}};
    program.instrs.push_back(instr);
  }
  const auto ranges = gradient_reduces(bucket_gradients(program, kHuge));
  CHECK(ranges == std::vector<Range>{{0, 0, 2048}, {0, 3072, 1024}, {0, 2048, 1024}});
}

TEST_CASE("a program without gradients passes through") {
  const Built built = build(small_config(1, false), Mode::kEvaluate);
  const Program program = build_evaluation_step(built.model, built.partition, {});
  CHECK(program_text(bucket_gradients(program, 1)) == program_text(program));
}

}  // namespace
}  // namespace ftrun
