#include "partition/sharding.h"

#include <algorithm>
#include <random>

#include "partition_text.h"
#include "random_model.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::partition_text;
using testing::random_model;
using testing::tiny_llama;

TEST_CASE("each layer's small tensors get a unit of their own") {
  const ModelDescription model = tiny_llama(true);
  CHECK(partition_text(build_units(model, UnitGranularity::kLayer, {48, INT64_MAX})) ==
        "unit 0 embed: 8192 elements (5376 in 1 tensor), layers 0,3\n"
        "unit 1 layers.0.small: 4096 elements (96 in 2 tensors), layers 1\n"
        "unit 2 layers.0: 20480 elements (17088 in 7 tensors), layers 1\n"
        "unit 3 layers.1.small: 4096 elements (96 in 2 tensors), layers 2\n"
        "unit 4 layers.1: 20480 elements (17088 in 7 tensors), layers 2\n"
        "unit 5 head.small: 4096 elements (48 in 1 tensor), layers 3\n");
}

TEST_CASE("a model that is one unit has a second one for its small tensors") {
  CHECK(partition_text(build_units(tiny_llama(true), UnitGranularity::kModel, {48, INT64_MAX})) ==
        "unit 0 model: 40960 elements (39552 in 15 tensors), layers 0,1,2,3\n"
        "unit 1 model.small: 4096 elements (240 in 5 tensors), layers 1,2,3\n");
}

TEST_CASE("tensors count as small only as long as their sum stays below the limit") {
  const auto small_tensors = [](int64_t total) {
    size_t count = 0;
    for (const Unit& unit :
         build_units(tiny_llama(true), UnitGranularity::kLayer, {48, total}).units)
      if (unit.holds_small_tensors) count += unit.slices.size();
    return count;
  };
  CHECK(small_tensors(240) == 5);
  CHECK(small_tensors(239) == 4);
  CHECK(small_tensors(100) == 2);
  CHECK(small_tensors(47) == 0);
}

TEST_CASE("a fused parameter counts as small if all of its tensors are small") {
  // A row of k or v has 768 elements, one of q 2304.
  const auto small_of = [](int64_t threshold) {
    std::vector<std::string> names;
    const ModelDescription model = tiny_llama(true);
    for (const Unit& unit : build_units(model, UnitGranularity::kLayer, {threshold, 20'000}).units)
      for (const TensorSlice& slice : unit.slices)
        if (unit.holds_small_tensors) names.push_back(model.tensor(slice.tensor).name);
    return names;
  };
  const std::vector<std::string> none = small_of(2303);
  CHECK(std::none_of(none.begin(), none.end(), [](const std::string& name) {
    return name.find("_proj") != std::string::npos;
  }));
  const std::vector<std::string> names = small_of(2304);
  CHECK(std::count(names.begin(), names.end(), "model.layers.0.self_attn.k_proj.weight") == 1);
}

TEST_CASE("with one rank, or without sharding, no unit is sharded") {
  const Partition partition = build_units(tiny_llama(false));
  for (const Sharding& sharding : {Sharding(partition), Sharding(partition, {1, 0}, true)}) {
    for (const Unit& unit : partition.units) {
      CHECK_FALSE(sharding.is_sharded(unit.id));
      CHECK(sharding.held_elements(unit.id) == unit.padded_numel);
      CHECK(sharding.padded_elements(unit.id) == unit.padded_numel);
      CHECK(sharding.begin(unit.id) == 0);
      CHECK(sharding.own_range(unit.id) == UnitRange{0, unit.padded_numel});
    }
  }
}

TEST_CASE(
    "two ranks hold three and two of a unit's five blocks, and a gathered copy is padded to six") {
  const Partition partition = build_units(tiny_llama(false));
  const Sharding first(partition, {2, 0}, true);
  const Sharding second(partition, {2, 1}, true);
  REQUIRE(partition.unit(1).padded_numel == 5 * kUnitBlock);
  CHECK(first.held_elements(1) == 3 * kUnitBlock);
  CHECK(first.padded_elements(1) == 6 * kUnitBlock);
  CHECK(first.own_range(1) == UnitRange{0, 3 * kUnitBlock});
  CHECK(second.begin(1) == 3 * kUnitBlock);
  CHECK(second.own_range(1) == UnitRange{3 * kUnitBlock, 5 * kUnitBlock});
  // The embedding and the head have two blocks each.
  CHECK(second.held_elements(0) == kUnitBlock);
  CHECK(second.held_elements(3) == kUnitBlock);
  CHECK(second.padded_elements(3) == 2 * kUnitBlock);
}

TEST_CASE(
    "all ranks' shards of a unit cover it once, and each rank has all of a unit that is not "
    "sharded") {
  std::mt19937_64 random(77);
  for (int round = 0; round < 60; ++round) {
    const ModelDescription model = random_model(random);
    const Partition partition =
        build_units(model, static_cast<UnitGranularity>(round % 3), {90, INT64_MAX});
    const int count = 2 + round % 5;
    const bool shard_small_units = round % 2 == 0;
    for (const Unit& unit : partition.units) {
      int64_t end = 0;
      for (int index = 0; index < count; ++index) {
        const Sharding sharding(partition, {count, index}, shard_small_units);
        REQUIRE(sharding.is_sharded(unit.id) ==
                (!unit.holds_small_tensors ||
                 (shard_small_units && shard_range(unit, count - 1, count).size() > 0)));
        if (!sharding.is_sharded(unit.id)) {
          REQUIRE(sharding.own_range(unit.id) == UnitRange{0, unit.padded_numel});
          end = unit.padded_numel;
          continue;
        }
        REQUIRE(sharding.own_range(unit.id).begin == end);
        end = sharding.own_range(unit.id).end;
        REQUIRE(sharding.own_range(unit.id).size() <= sharding.held_elements(unit.id));
        REQUIRE(sharding.begin(unit.id) == index * sharding.held_elements(unit.id));
        REQUIRE(sharding.held_elements(unit.id) * count == sharding.padded_elements(unit.id));
        REQUIRE(sharding.padded_elements(unit.id) >= unit.padded_numel);
      }
      REQUIRE(end == unit.padded_numel);
    }
  }
}

}  // namespace
}  // namespace ftrun
