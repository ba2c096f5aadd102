#include "partition/flat_layout.h"

#include <algorithm>
#include <random>

#include "base/error.h"
#include "model/tensors.h"
#include "random_model.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::random_model;
using testing::tiny_llama;

Unit unit_of(int64_t padded, std::vector<TensorSlice> slices = {}) {
  return {0, "unit", {0}, std::move(slices), 0, padded};
}

TEST_CASE("parameters' units are laid out in forward order and gradients' in backward order") {
  const Partition partition = build_units(tiny_llama(true));
  const FlatLayout forward = make_flat_layout(partition, FlatOrder::kForward);
  CHECK(forward.offset == std::vector<int64_t>{0, 8192, 28672, 49152});
  CHECK(forward.order == std::vector<UnitId>{0, 1, 2, 3});
  CHECK(forward.total_elements == 53248);
  const FlatLayout backward = make_flat_layout(partition, FlatOrder::kBackward);
  CHECK(backward.offset == std::vector<int64_t>{45056, 24576, 4096, 0});
  CHECK(backward.order == std::vector<UnitId>{3, 2, 1, 0});
  CHECK(backward.total_elements == 53248);
}

TEST_CASE("shards are equal and aligned to blocks, and the last ones of a small unit are empty") {
  const Unit unit = unit_of(5 * kUnitBlock);
  CHECK(shard_range(unit, 0, 1) == UnitRange{0, 20480});
  CHECK(shard_range(unit, 0, 2) == UnitRange{0, 12288});
  CHECK(shard_range(unit, 1, 2) == UnitRange{12288, 20480});
  CHECK(shard_range(unit, 3, 4) == UnitRange{20480, 20480});
  CHECK(shard_size(unit, 4) == 8192);
  CHECK(shard_size(unit, 7) == 4096);
  CHECK(shard_range(unit, 6, 7).size() == 0);
}

TEST_CASE("the number of a shard must be less than the number of shards") {
  CHECK_THROWS_AS(shard_range(unit_of(kUnitBlock), 3, 3), Error);
}

TEST_CASE("the slices of a range are those of the unit, shortened at both ends of the range") {
  const Unit unit = unit_of(4096, {{7, 0, 100, 0}, {8, 50, 30, 112}, {9, 0, 1000, 142}});
  CHECK(slices_in(unit, 0, 4096) == unit.slices);
  CHECK(slices_in(unit, 90, 120) == std::vector<TensorSlice>{{7, 90, 10, 90}, {8, 50, 8, 112}});
  CHECK(slices_in(unit, 120, 200) == std::vector<TensorSlice>{{8, 58, 22, 120}, {9, 0, 58, 142}});
  CHECK(slices_in(unit, 100, 112).empty());
  CHECK(slices_in(unit, 2000, 4096).empty());
  CHECK(slices_in(unit, 50, 50).empty());
  CHECK_THROWS_AS(slices_in(unit, 0, 4097), Error);
}

// Counts for each element of every tensor how many shards' slices hold it.
std::vector<std::vector<int>> count_holders(const ModelDescription& model,
                                            const Partition& partition, int count) {
  std::vector<std::vector<int>> seen;
  for (const TensorInfo& tensor : model.tensors) seen.emplace_back(tensor.numel(), 0);
  for (const Unit& unit : partition.units) {
    int64_t end = 0;
    for (int index = 0; index < count; ++index) {
      const UnitRange range = shard_range(unit, index, count);
      REQUIRE(range.begin == end);
      REQUIRE(range.begin % kUnitBlock == 0);
      REQUIRE(range.size() <= shard_size(unit, count));
      end = range.end;
      for (const TensorSlice& slice : slices_in(unit, range.begin, range.end)) {
        REQUIRE(slice.position_in_unit >= range.begin);
        REQUIRE(slice.position_in_unit + slice.extent <= range.end);
        for (int64_t i = 0; i < slice.extent; ++i)
          ++seen[static_cast<size_t>(slice.tensor)][static_cast<size_t>(slice.offset + i)];
      }
    }
    REQUIRE(end == unit.padded_numel);
    REQUIRE(shard_size(unit, count) * count >= unit.padded_numel);
  }
  return seen;
}

TEST_CASE("every element of every tensor is in exactly one of 1 to 7 shards") {
  std::mt19937_64 random(23);
  for (int round = 0; round < 40; ++round) {
    const ModelDescription model = random_model(random);
    const auto granularity = static_cast<UnitGranularity>(round % 3);
    const Partition partition = build_units(model, granularity);
    for (int count = 1; count <= 7; ++count) {
      for (const auto& tensor : count_holders(model, partition, count))
        REQUIRE(std::all_of(tensor.begin(), tensor.end(), [](int times) { return times == 1; }));
    }
  }
}

TEST_CASE(
    "slices of a range give an element the same position in unit and tensor as whole slices do") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 100; ++round) {
    const ModelDescription model = random_model(random);
    const Partition partition = build_units(model);
    for (const Unit& unit : partition.units) {
      std::uniform_int_distribution<int64_t> position(0, unit.padded_numel);
      const auto [begin, end] = std::minmax({position(random), position(random)});
      for (const TensorSlice& part : slices_in(unit, begin, end)) {
        const auto whole =
            std::find_if(unit.slices.begin(), unit.slices.end(),
                         [&](const TensorSlice& s) { return s.tensor == part.tensor; });
        REQUIRE(part.position_in_unit - whole->position_in_unit == part.offset - whole->offset);
      }
    }
  }
}

/// Returns the update kind ranges of a unit's elements for tensors with weight decay as `decays`
/// says and states that are no codes.
std::vector<UpdateKindRange> ranges_by_decay(const Unit& unit, const ModelDescription& model,
                                             const std::function<bool(const TensorInfo&)>& decays,
                                             int64_t begin, int64_t end) {
  return update_kind_ranges(
      unit,
      [&](const TensorSlice& slice) -> UpdateKind { return {decays(model.tensor(slice.tensor))}; },
      begin, end);
}

UpdateKindRange decay_range(int64_t begin, int64_t end, bool decay) {
  return {begin, end, {decay}};
}

TEST_CASE(
    "a block's norms and its matrices are separate update ranges if only matrices have weight "
    "decay") {
  const ModelDescription model = tiny_llama(true);
  const Partition partition = build_units(model);
  // The tensors are the input norm, qkv, o, post norm, gate and up, and down.
  CHECK(ranges_by_decay(partition.unit(1), model, has_weight_decay, 0, 20480) ==
        std::vector<UpdateKindRange>{decay_range(0, 256, false), decay_range(256, 6400, true),
                                     decay_range(6400, 6656, false),
                                     decay_range(6656, 20480, true)});
  CHECK(ranges_by_decay(partition.unit(1), model, has_weight_decay, 40, 6420) ==
        std::vector<UpdateKindRange>{decay_range(40, 256, false), decay_range(256, 6400, true),
                                     decay_range(6400, 6420, false)});
  const auto all = [](const TensorInfo&) { return true; };
  CHECK(ranges_by_decay(partition.unit(1), model, all, 0, 20480) ==
        std::vector<UpdateKindRange>{decay_range(0, 20480, true)});
  CHECK(ranges_by_decay(partition.unit(3), model, all, 48, 4096) ==
        std::vector<UpdateKindRange>{decay_range(48, 4096, false)});  // padding only
  CHECK(ranges_by_decay(partition.unit(3), model, all, 7, 7).empty());
}

TEST_CASE("update ranges cover a shard exactly once and each tensor has its own decay") {
  std::mt19937_64 random(31);
  for (int round = 0; round < 100; ++round) {
    const ModelDescription model = random_model(random);
    const Partition partition = build_units(model);
    for (const Unit& unit : partition.units) {
      std::uniform_int_distribution<int64_t> position(0, unit.padded_numel);
      const auto [begin, end_of_part] = std::minmax({position(random), position(random)});
      const UnitRange shard{begin, end_of_part};
      int64_t end = shard.begin;
      for (const UpdateKindRange& range :
           ranges_by_decay(unit, model, has_weight_decay, shard.begin, shard.end)) {
        REQUIRE(range.begin == end);
        REQUIRE(range.end > range.begin);
        end = range.end;
        for (const TensorSlice& slice : slices_in(unit, range.begin, range.end))
          REQUIRE(has_weight_decay(model.tensor(slice.tensor)) == range.kind.decay);
      }
      REQUIRE(end == shard.end);
    }
  }
}

TEST_CASE("a tensor that straddles blocks is an update range of its own, without padding") {
  std::mt19937_64 random(32);
  size_t straddling_parts = 0;
  for (int round = 0; round < 100; ++round) {
    const ModelDescription model = random_model(random);
    const Partition partition = build_units(model);
    for (const Unit& unit : partition.units) {
      const auto kind_of = [&](const TensorSlice& slice) -> UpdateKind {
        return {.has_8bit_states = true,
                .straddling_tensor = slice.tensor % 3 == 0 ? slice.tensor : -1};
      };
      std::vector<TensorSlice> left = unit.slices;
      for (const UpdateKindRange& range : update_kind_ranges(unit, kind_of, 0, unit.padded_numel)) {
        const std::vector<TensorSlice> slices = slices_in(unit, range.begin, range.end);
        std::erase_if(left, [&](const TensorSlice& slice) {
          return std::find(slices.begin(), slices.end(), slice) != slices.end();
        });
        if (range.kind.straddling_tensor < 0) continue;
        ++straddling_parts;
        REQUIRE(slices.size() == 1);
        REQUIRE(slices[0].tensor == range.kind.straddling_tensor);
        REQUIRE(slices[0].extent == range.end - range.begin);
      }
      REQUIRE(left.empty());
    }
  }
  REQUIRE(straddling_parts > 100);
}

TEST_CASE(
    "a tensor straddles blocks if ranks cut its rows within a block or if it begins within one") {
  TensorInfo tensor("w", {8, 1024});
  const TensorSlice slice{0, 0, 8 * 1024, 512};
  REQUIRE_FALSE(straddles_blocks(tensor, slice));
  REQUIRE(straddles_blocks(tensor, {0, 0, 8 * 1024, 512 + 40}));
  REQUIRE_FALSE(
      straddles_blocks(tensor, {0, 100, 512, 612}));  // part of a slice that begins at a block
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
    "matrices with 8-bit states have a unit of their own, and a parameter with some has "
    "another") {
  const ModelDescription model = tiny_llama(true);
  const auto has_8bit_states = [](const TensorInfo& tensor) {
    return tensor.name.find("q_proj") != std::string::npos ||
           tensor.name.find("down_proj") != std::string::npos;
  };
  size_t codes = 0, both = 0;
  for (const Unit& unit : build_units(model, UnitGranularity::kLayer, {}, has_8bit_states).units) {
    size_t with_codes = 0;
    for (const TensorSlice& slice : unit.slices)
      with_codes += has_8bit_states(model.tensor(slice.tensor)) ? 1 : 0;
    INFO(unit.name);
    if (unit.has_8bit_states && unit.has_plain_states) {
      ++both;
      REQUIRE(unit.slices.size() == 3);  // q, k, v
      REQUIRE(unit.name.ends_with(".partly_8bit"));
    } else {
      REQUIRE(with_codes == (unit.has_8bit_states ? unit.slices.size() : 0));
      REQUIRE(unit.name.ends_with(".8bit") == unit.has_8bit_states);
      codes += unit.has_8bit_states ? 1 : 0;
    }
  }
  REQUIRE(codes > 0);
  REQUIRE(both == codes);
}

}  // namespace
}  // namespace ftrun
