#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "models.h"
#include "partition/flat_layout.h"
#include "program/buckets.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
const int64_t kBucketSizes[] = {1, 4096, 5000, 8192, 20'000, 500'000'000, kHuge};

TEST_CASE("whatever the bucket size, every byte of the gradients is reduced exactly once") {
  std::mt19937_64 random(61);
  for (int round = 0; round < 30; ++round) {
    const PartitionedModel built =
        build(random_config(random), GraphMode::kTrain, kGranularities[round % 3]);
    for (const int64_t size : kBucketSizes) {
      const Program program = built.step({.micro_batches = 1 + round % 3, .bucket_elements = size});
      INFO("bucket of " << size << "\n" << program_text(program));
      int64_t end = 0;
      // Gradients are stored in the order of backward, so buckets follow each other without gaps.
      for (const std::vector<BufferRange>& bucket : gradient_reduces(program))
        for (const BufferRange& range : bucket) {
          REQUIRE(gradient_offset(program, range) == end);
          end += range.bytes;
        }
      REQUIRE(end == gradient_bytes(program));
    }
  }
}

TEST_CASE("a bucket has as many complete units as fit, and at least one") {
  std::mt19937_64 random(62);
  for (int round = 0; round < 30; ++round) {
    const PartitionedModel built =
        build(random_config(random), GraphMode::kTrain, kGranularities[round % 3]);
    const FlatLayout layout = make_flat_layout(built.partition, FlatOrder::kBackward);
    for (const int64_t size : kBucketSizes) {
      // The naive form takes units in the order of the buffer, and opens a new bucket when the next
      // unit does not fit.
      std::vector<int64_t> expected;
      for (const UnitId id : layout.order) {
        const int64_t elements = built.partition.unit(id).padded_numel;
        if (expected.empty() || expected.back() >= size || elements > size - expected.back())
          expected.push_back(0);
        expected.back() += elements;
      }
      std::vector<int64_t> found;
      for (const std::vector<BufferRange>& bucket :
           gradient_reduces(built.step({.bucket_elements = size}))) {
        found.push_back(0);
        for (const BufferRange& range : bucket) found.back() += range.bytes / 4;
      }
      REQUIRE(found == expected);
    }
  }
}

TEST_CASE("a bucket is reduced right after the backward that writes its last gradient") {
  std::mt19937_64 random(63);
  for (int round = 0; round < 30; ++round) {
    const PartitionedModel built =
        build(random_config(random), GraphMode::kTrain, kGranularities[round % 3]);
    for (const int64_t size : kBucketSizes) {
      const Program program = built.step({.micro_batches = 2, .bucket_elements = size});
      for (const size_t i : positions_of(program, InstrKind::kAllReduce)) {
        const std::vector<BufferRange>& bucket = program.instrs[i].writes;
        if (!is_gradient(program, bucket[0])) continue;
        size_t last_write = 0;
        for (const size_t b : positions_of(program, InstrKind::kBackward))
          for (const BufferRange& write : program.instrs[b].writes)
            if (std::any_of(bucket.begin(), bucket.end(),
                            [&](const BufferRange& range) { return overlaps(write, range); }))
              last_write = b;
        size_t before = i - 1;
        while (program.instrs[before].kind == InstrKind::kAllReduce) --before;
        INFO(program_text(program) << "bucket at " << i);
        REQUIRE(before == last_write);
      }
    }
  }
}

TEST_CASE("bucketing changes nothing but the reductions") {
  const PartitionedModel built = build(small_config(3, true));
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

TEST_CASE("ranges that are not adjacent are reduced by one instruction, as separate ranges") {
  Program program;
  program.buffers = {{.name = "gradients",
                      .category = Category::kGradients,
                      .bytes = 4096,
                      .format = {.dtype = DType::kF32}}};
  program.groups = {{{"data", {0, 1}}, {2, 0}}};
  BucketFiller filler(program, kHuge);
  for (const int64_t offset : {0, 1024, 3072, 2048}) {
    Instr instr{.kind = InstrKind::kAllReduce, .lane = lane_of(0)};
    instr.detail = Communication{.group = 0};
    instr.unit = 0;
    instr.reads = instr.writes = {{0, offset, 1024}};
    filler.add(static_cast<size_t>(offset == 0 ? 3 : 7), instr);
  }
  const std::vector<Bucket> buckets = filler.finish();
  REQUIRE(buckets.size() == 1);
  CHECK(buckets[0].last_position == 7);
  CHECK(buckets[0].elements == 1024);
  CHECK(buckets[0].collective.reads == buckets[0].collective.writes);
  CHECK(buckets[0].collective.writes ==
        std::vector<BufferRange>{{0, 0, 2048}, {0, 3072, 1024}, {0, 2048, 1024}});
}

TEST_CASE("small units do not break the buckets of large ones, and have their own") {
  PartitionedModel built = build(small_config(6, false));
  built.partition = build_units(built.model, UnitGranularity::kLayer, {64, INT64_MAX});
  StepOptions options{.micro_batches = 2};
  options.state.zero_stage = 3;
  const Program program = built.step(options);
  INFO(program_text(program));
  // Each micro-batch has one reduction of large and one of small units; loss and norm are summed
  // separately.
  CHECK(positions_of(program, InstrKind::kReduceScatter).size() == 2);
  CHECK(positions_of(program, InstrKind::kAllReduce).size() == 2 + 2);
  // Large units: six blocks, embedding and head. Small units: the norms of six blocks and of the
  // head.
  CHECK(program.instrs[positions_of(program, InstrKind::kReduceScatter)[0]].reads.size() == 8);
  CHECK(program.instrs[positions_of(program, InstrKind::kAllReduce)[0]].reads.size() == 7);
}

TEST_CASE("accumulations move with the bucket of their reduction") {
  PartitionedModel built = build(small_config(4, false));
  StepOptions options{.micro_batches = 2, .bucket_elements = 4 * kUnitBlock};
  options.state.zero_stage = 2;
  const Program program = built.step(options);
  INFO(program_text(program));
  for (const size_t i : positions_of(program, InstrKind::kAccumulate)) {
    size_t reduction = i;
    while (program.instrs[reduction].kind == InstrKind::kAccumulate) --reduction;
    const auto& reduced = program.instrs[reduction].writes;
    REQUIRE(program.instrs[reduction].kind == InstrKind::kReduceScatter);
    REQUIRE(std::count(reduced.begin(), reduced.end(), program.instrs[i].reads[0]) == 1);
  }
}

TEST_CASE("gathers of updated parameters are joined to buckets") {
  const PartitionedModel built = build(small_config(6, false));
  const auto gathers = [&](int64_t elements) {
    StepOptions options{.gather_bucket_elements = elements};
    options.state.zero_stage = 1;
    const Program program = built.step(options);
    std::vector<size_t> sizes;
    for (const size_t i : positions_of(program, InstrKind::kAllGather))
      sizes.push_back(program.instrs[i].writes.size());
    return sizes;
  };
  // Each of the two whole copies has two blocks.
  CHECK(gathers(1) == std::vector<size_t>(8, 1));
  CHECK(gathers(4 * kUnitBlock) == std::vector<size_t>(4, 2));
  CHECK(gathers(6 * kUnitBlock) == std::vector<size_t>{3, 3, 2});
  CHECK(gathers(kHuge) == std::vector<size_t>{8});
}

TEST_CASE("a closed bucket accepts nothing more; buckets are sorted by their last collective") {
  Program program;
  program.buffers = {{.name = "gradients", .bytes = 4096, .format = {.dtype = DType::kF32}}};
  const auto sum = [](InstrKind kind, int64_t offset) {
    Instr instr{.kind = kind, .detail = Communication()};
    instr.reads = instr.writes = {{0, offset, 256}};
    return instr;
  };
  const Instr copy{.kind = InstrKind::kCopy};
  BucketFiller filler(program, 128);
  filler.add(0, sum(InstrKind::kAllReduce, 0), {copy});
  filler.add(1, sum(InstrKind::kReduceScatter, 1024));
  filler.add(2, sum(InstrKind::kAllReduce, 256), {copy, copy});
  filler.add(3, sum(InstrKind::kAllReduce, 512));
  filler.close();
  filler.add(4, sum(InstrKind::kReduceScatter, 2048));
  std::vector<std::tuple<InstrKind, size_t, int64_t, size_t>> found;
  for (const Bucket& bucket : filler.finish())
    found.emplace_back(bucket.collective.kind, bucket.last_position, bucket.elements,
                       bucket.following.size());
  CHECK(found == std::vector<std::tuple<InstrKind, size_t, int64_t, size_t>>{
                     {InstrKind::kReduceScatter, 1, 64, 0},
                     {InstrKind::kAllReduce, 2, 128, 3},
                     {InstrKind::kAllReduce, 3, 64, 0},
                     {InstrKind::kReduceScatter, 4, 64, 0}});
  CHECK(filler.finish().empty());
}

}  // namespace
}  // namespace ftrun
