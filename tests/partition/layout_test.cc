#include "partition/flat_layout.h"

#include <algorithm>
#include <random>

#include "base/error.h"
#include "model/tensors.h"
#include "random_model.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using fixtures::random_model;
using fixtures::tiny_llama;

Unit unit_of(int64_t padded, std::vector<Slice> slices = {}) {
  return {0, "unit", {0}, std::move(slices), 0, padded};
}

TEST_CASE("units lie in forward order for parameters and in backward order for gradients") {
  const Partition partition = build_units(tiny_llama(true));
  const FlatLayout forward = flat_layout(partition, FlatOrder::kForward);
  CHECK(forward.offset == std::vector<int64_t>{0, 8192, 28672, 49152});
  CHECK(forward.order == std::vector<UnitId>{0, 1, 2, 3});
  CHECK(forward.total == 53248);
  const FlatLayout backward = flat_layout(partition, FlatOrder::kBackward);
  CHECK(backward.offset == std::vector<int64_t>{45056, 24576, 4096, 0});
  CHECK(backward.order == std::vector<UnitId>{3, 2, 1, 0});
  CHECK(backward.total == 53248);
}

TEST_CASE("shards are equal, aligned to blocks, and late ones of a small unit are empty") {
  const Unit unit = unit_of(5 * kUnitBlock);
  CHECK(shard_range(unit, 0, 1) == UnitRange{0, 20480});
  CHECK(shard_range(unit, 0, 2) == UnitRange{0, 12288});
  CHECK(shard_range(unit, 1, 2) == UnitRange{12288, 20480});
  CHECK(shard_range(unit, 3, 4) == UnitRange{20480, 20480});
  CHECK(shard_stride(unit, 4) == 8192);
  CHECK(shard_stride(unit, 7) == 4096);
  CHECK(shard_range(unit, 6, 7).size() == 0);
}

TEST_CASE("there is no shard past the last one") {
  CHECK_THROWS_AS(shard_range(unit_of(kUnitBlock), 3, 3), Error);
}

TEST_CASE("slices of a range are cut where the range is") {
  const Unit unit = unit_of(4096, {{7, 0, 100, 0}, {8, 50, 30, 112}, {9, 0, 1000, 142}});
  CHECK(slices_in(unit, 0, 4096) == unit.slices);
  CHECK(slices_in(unit, 90, 120) == std::vector<Slice>{{7, 90, 10, 90}, {8, 50, 8, 112}});
  CHECK(slices_in(unit, 120, 200) == std::vector<Slice>{{8, 58, 22, 120}, {9, 0, 58, 142}});
  CHECK(slices_in(unit, 100, 112).empty());
  CHECK(slices_in(unit, 2000, 4096).empty());
  CHECK(slices_in(unit, 50, 50).empty());
  CHECK_THROWS_AS(slices_in(unit, 0, 4097), Error);
}

// Marks the elements of every tensor that some shard's slices hold.
std::vector<std::vector<int>> coverage(const ModelDescription& model, const Partition& partition,
                                       int count) {
  std::vector<std::vector<int>> seen;
  for (const TensorInfo& tensor : model.tensors) seen.emplace_back(tensor.numel(), 0);
  for (const Unit& unit : partition.units) {
    int64_t end = 0;
    for (int index = 0; index < count; ++index) {
      const UnitRange range = shard_range(unit, index, count);
      REQUIRE(range.begin == end);
      REQUIRE(range.begin % kUnitBlock == 0);
      REQUIRE(range.size() <= shard_stride(unit, count));
      end = range.end;
      for (const Slice& slice : slices_in(unit, range.begin, range.end)) {
        REQUIRE(slice.position_in_unit >= range.begin);
        REQUIRE(slice.position_in_unit + slice.extent <= range.end);
        for (int64_t i = 0; i < slice.extent; ++i)
          ++seen[static_cast<size_t>(slice.tensor)][static_cast<size_t>(slice.offset + i)];
      }
    }
    REQUIRE(end == unit.padded);
    REQUIRE(shard_stride(unit, count) * count >= unit.padded);
  }
  return seen;
}

TEST_CASE("with 1 to 7 shards every element of every tensor is held exactly once") {
  std::mt19937_64 random(23);
  for (int round = 0; round < 40; ++round) {
    const ModelDescription model = random_model(random);
    const auto granularity = static_cast<UnitGranularity>(round % 3);
    const Partition partition = build_units(model, granularity);
    for (int count = 1; count <= 7; ++count) {
      for (const auto& tensor : coverage(model, partition, count))
        REQUIRE(std::all_of(tensor.begin(), tensor.end(), [](int times) { return times == 1; }));
    }
  }
}

TEST_CASE("slices of a range say where in the unit and where in the tensor an element is") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 100; ++round) {
    const ModelDescription model = random_model(random);
    const Partition partition = build_units(model);
    for (const Unit& unit : partition.units) {
      std::uniform_int_distribution<int64_t> spot(0, unit.padded);
      const auto [begin, end] = std::minmax({spot(random), spot(random)});
      for (const Slice& part : slices_in(unit, begin, end)) {
        const auto whole = std::find_if(unit.slices.begin(), unit.slices.end(),
                                        [&](const Slice& s) { return s.tensor == part.tensor; });
        REQUIRE(part.position_in_unit - whole->position_in_unit == part.offset - whole->offset);
      }
    }
  }
}

/// Returns the tensors with weight decay as `decays` says, whose states are numbers.
std::vector<UpdatePart> parts_by_decay(const Unit& unit, const ModelDescription& model,
                                       const std::function<bool(const TensorInfo&)>& decays,
                                       int64_t begin, int64_t end) {
  return update_parts(
      unit, [&](const Slice& slice) -> UpdateKind { return {decays(model.tensor(slice.tensor))}; },
      begin, end);
}

UpdatePart part(int64_t begin, int64_t end, bool decay) {
  return {begin, end, {decay}};
}

TEST_CASE("a block's norms are decayed apart from its matrices") {
  const ModelDescription model = tiny_llama(true);
  const Partition partition = build_units(model);
  // input norm, qkv, o, post norm, gate and up, down
  CHECK(parts_by_decay(partition.unit(1), model, decays, 0, 20480) ==
        std::vector<UpdatePart>{part(0, 256, false), part(256, 6400, true), part(6400, 6656, false),
                                part(6656, 20480, true)});
  CHECK(parts_by_decay(partition.unit(1), model, decays, 40, 6420) ==
        std::vector<UpdatePart>{part(40, 256, false), part(256, 6400, true),
                                part(6400, 6420, false)});
  const auto all = [](const TensorInfo&) { return true; };
  CHECK(parts_by_decay(partition.unit(1), model, all, 0, 20480) ==
        std::vector<UpdatePart>{part(0, 20480, true)});
  CHECK(parts_by_decay(partition.unit(3), model, all, 48, 4096) ==
        std::vector<UpdatePart>{part(48, 4096, false)});  // padding only
  CHECK(parts_by_decay(partition.unit(3), model, all, 7, 7).empty());
}

TEST_CASE("parts of updates cover a shard once and agree with each tensor's rule") {
  std::mt19937_64 random(31);
  for (int round = 0; round < 100; ++round) {
    const ModelDescription model = random_model(random);
    const Partition partition = build_units(model);
    for (const Unit& unit : partition.units) {
      std::uniform_int_distribution<int64_t> spot(0, unit.padded);
      const auto [begin, end_of_part] = std::minmax({spot(random), spot(random)});
      const UnitRange shard{begin, end_of_part};
      int64_t end = shard.begin;
      for (const UpdatePart& range : parts_by_decay(unit, model, decays, shard.begin, shard.end)) {
        REQUIRE(range.begin == end);
        REQUIRE(range.end > range.begin);
        end = range.end;
        for (const Slice& slice : slices_in(unit, range.begin, range.end))
          REQUIRE(decays(model.tensor(slice.tensor)) == range.kind.decay);
      }
      REQUIRE(end == shard.end);
    }
  }
}

TEST_CASE("a tensor that straddles blocks is updated by itself, without what is padded around it") {
  std::mt19937_64 random(32);
  size_t alone = 0;
  for (int round = 0; round < 100; ++round) {
    const ModelDescription model = random_model(random);
    const Partition partition = build_units(model);
    for (const Unit& unit : partition.units) {
      const auto kind_of = [&](const Slice& slice) -> UpdateKind {
        return {.coded = true, .straddling = slice.tensor % 3 == 0 ? slice.tensor : -1};
      };
      std::vector<Slice> left = unit.slices;
      for (const UpdatePart& range : update_parts(unit, kind_of, 0, unit.padded)) {
        const std::vector<Slice> slices = slices_in(unit, range.begin, range.end);
        std::erase_if(left, [&](const Slice& slice) {
          return std::find(slices.begin(), slices.end(), slice) != slices.end();
        });
        if (range.kind.straddling < 0) continue;
        ++alone;
        REQUIRE(slices.size() == 1);
        REQUIRE(slices[0].tensor == range.kind.straddling);
        REQUIRE(slices[0].extent == range.end - range.begin);
      }
      REQUIRE(left.empty());
    }
  }
  REQUIRE(alone > 100);
}

TEST_CASE("blocks are straddled where ranks cut rows within them, and by what begins within one") {
  TensorInfo tensor("w", {8, 1024});
  const Slice slice{0, 0, 8 * 1024, 512};
  REQUIRE_FALSE(straddles_blocks(tensor, slice));
  REQUIRE(straddles_blocks(tensor, {0, 0, 8 * 1024, 512 + 40}));
  REQUIRE_FALSE(
      straddles_blocks(tensor, {0, 100, 512, 612}));  // a part of a slice that begins with a block
  tensor.local.extent[1] = 256;
  REQUIRE_FALSE(straddles_blocks(tensor, slice));
  tensor.local.extent[1] = 128;
  REQUIRE(straddles_blocks(tensor, slice));
  TensorInfo rows("w", {64, 36});
  rows.local.extent[0] = 16;  // 576 elements
  REQUIRE(straddles_blocks(rows, slice));
  rows.local.extent[0] = 64;
  REQUIRE_FALSE(straddles_blocks(rows, slice));
}

TEST_CASE(
    "a matrix whose states are codes has a unit of its own, and one with both kinds another") {
  const ModelDescription model = tiny_llama(true);
  const auto coded = [](const TensorInfo& tensor) {
    return tensor.name.find("q_proj") != std::string::npos ||
           tensor.name.find("down_proj") != std::string::npos;
  };
  size_t codes = 0, both = 0;
  for (const Unit& unit : build_units(model, UnitGranularity::kLayer, {}, coded).units) {
    size_t with_codes = 0;
    for (const Slice& slice : unit.slices) with_codes += coded(model.tensor(slice.tensor)) ? 1 : 0;
    INFO(unit.name);
    if (unit.has_coded_states && unit.has_plain_states) {
      ++both;
      REQUIRE(unit.slices.size() == 3);  // q, k, v
      REQUIRE(unit.name.ends_with(".partly_coded"));
    } else {
      REQUIRE(with_codes == (unit.has_coded_states ? unit.slices.size() : 0));
      REQUIRE(unit.name.ends_with(".coded") == unit.has_coded_states);
      codes += unit.has_coded_states ? 1 : 0;
    }
  }
  REQUIRE(codes > 0);
  REQUIRE(both == codes);
}

}  // namespace
}  // namespace ftrun
