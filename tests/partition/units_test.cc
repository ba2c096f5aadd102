#include "partition/units.h"

#include <algorithm>
#include <random>
#include <string>

#include "base/error.h"
#include "partition_text.h"
#include "random_model.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::partition_text;
using testing::random_model;
using testing::tiny_llama;

TEST_CASE("an embedding, two layers and an untied head are four units") {
  const ModelDescription model = tiny_llama(false);
  CHECK(partition_text(build_units(model)) ==
        "unit 0 embed: 8192 elements (5376 in 1 tensor), layers 0\n"
        "unit 1 layers.0: 20480 elements (17184 in 9 tensors), layers 1\n"
        "unit 2 layers.1: 20480 elements (17184 in 9 tensors), layers 2\n"
        "unit 3 head: 8192 elements (5424 in 2 tensors), layers 3\n");
}

TEST_CASE("a tied matrix is in the embedding's unit, which the head also reads") {
  const ModelDescription model = tiny_llama(true);
  const Partition partition = build_units(model);
  CHECK(partition_text(partition) ==
        "unit 0 embed: 8192 elements (5376 in 1 tensor), layers 0,3\n"
        "unit 1 layers.0: 20480 elements (17184 in 9 tensors), layers 1\n"
        "unit 2 layers.1: 20480 elements (17184 in 9 tensors), layers 2\n"
        "unit 3 head: 4096 elements (48 in 1 tensor), layers 3\n");
  CHECK(partition.units_of(3) == std::vector<UnitId>{0, 3});
  CHECK(partition.param_locations[3] == std::vector<ParamLocation>{{3, 0}, {0, 0}});
}

TEST_CASE("granularity block gives attention and MLP separate units") {
  const ModelDescription model = tiny_llama(true);
  const Partition partition = build_units(model, UnitGranularity::kBlock);
  CHECK(partition_text(partition) ==
        "unit 0 embed: 8192 elements (5376 in 1 tensor), layers 0,3\n"
        "unit 1 layers.0.attention: 8192 elements (6192 in 5 tensors), layers 1\n"
        "unit 2 layers.0.mlp: 12288 elements (10992 in 4 tensors), layers 1\n"
        "unit 3 layers.1.attention: 8192 elements (6192 in 5 tensors), layers 2\n"
        "unit 4 layers.1.mlp: 12288 elements (10992 in 4 tensors), layers 2\n"
        "unit 5 head: 4096 elements (48 in 1 tensor), layers 3\n");
  CHECK(partition.units_of(1) == std::vector<UnitId>{1, 2});
}

TEST_CASE("granularity model makes the model one unit") {
  const Partition partition = build_units(tiny_llama(true), UnitGranularity::kModel);
  CHECK(partition_text(partition) ==
        "unit 0 model: 45056 elements (39792 in 20 tensors), layers 0,1,2,3\n");
}

TEST_CASE("names of granularities are the values of the config") {
  CHECK(name_of(UnitGranularity::kBlock) == "block");
  CHECK(name_of(UnitGranularity::kLayer) == "layer");
  CHECK(name_of(UnitGranularity::kModel) == "model");
}

TEST_CASE("a fused parameter's tensors follow one another without gaps") {
  const ModelDescription model = tiny_llama(true);
  const Partition partition = build_units(model);
  const GraphParam& qkv = model.layers[1].params[1];
  const ParamLocation location = partition.param_locations[1][1];
  int64_t position = location.position;
  for (size_t i = 0; i < qkv.tensors.size(); ++i) {
    const TensorSlice& slice = partition.unit(location.unit).slices[1 + i];
    CHECK(slice == TensorSlice{qkv.tensors[i], 0, model.tensor(qkv.tensors[i]).numel(), position});
    position += slice.extent;
  }
}

/// Checks that every tensor is whole in exactly one unit, that nothing overlaps, and that all
/// alignments hold.
void check_partition(const ModelDescription& model, const Partition& partition) {
  std::vector<int> seen(model.tensors.size(), 0);
  for (const Unit& unit : partition.units) {
    REQUIRE(unit.padded_numel % kUnitBlock == 0);
    // A parameter of several tensors may be moved so that no shard begins within it.
    REQUIRE(unit.padded_numel - unit.numel <
            kUnitBlock * (1 + static_cast<int64_t>(unit.slices.size()) / 2) +
                kTensorBlock * static_cast<int64_t>(unit.slices.size()));
    int64_t end = 0;
    int64_t sum = 0;
    for (const TensorSlice& slice : unit.slices) {
      REQUIRE(slice.position_in_unit >= end);
      REQUIRE(slice.offset == 0);
      REQUIRE(slice.extent == model.tensor(slice.tensor).numel());
      end = slice.position_in_unit + slice.extent;
      sum += slice.extent;
      ++seen[static_cast<size_t>(slice.tensor)];
    }
    REQUIRE(end <= unit.padded_numel);
    REQUIRE(sum == unit.numel);
  }
  REQUIRE(seen == std::vector<int>(model.tensors.size(), 1));
}

/// Checks that each graph parameter's place is where its tensors lie, without gaps.
void check_places(const ModelDescription& model, const Partition& partition) {
  for (size_t layer = 0; layer < model.layers.size(); ++layer) {
    for (size_t i = 0; i < model.layers[layer].params.size(); ++i) {
      const ParamLocation location = partition.param_locations[layer][i];
      REQUIRE(location.position % kTensorBlock == 0);
      int64_t position = location.position;
      for (TensorId tensor : model.layers[layer].params[i].tensors) {
        const auto& slices = partition.unit(location.unit).slices;
        const auto it = std::find_if(slices.begin(), slices.end(), [&](const TensorSlice& slice) {
          return slice.tensor == tensor;
        });
        REQUIRE(it != slices.end());
        REQUIRE(it->position_in_unit == position);
        position += it->extent;
      }
      const auto& readers = partition.unit(location.unit).layers;
      REQUIRE(std::count(readers.begin(), readers.end(), static_cast<int>(layer)) == 1);
    }
  }
}

TEST_CASE("random models are partitioned without loss, overlap or misalignment") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    const ModelDescription model = random_model(random);
    for (auto granularity :
         {UnitGranularity::kBlock, UnitGranularity::kLayer, UnitGranularity::kModel}) {
      const Partition partition = build_units(model, granularity);
      check_partition(model, partition);
      check_places(model, partition);
    }
  }
}

std::string bug_of(const ModelDescription& model) {
  try {
    build_units(model);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kBug);
    return error.message();
  }
  return "";
}

TEST_CASE("a description that cannot be partitioned is reported as a bug") {
  ModelDescription model = tiny_llama(false);
  model.tensors.push_back({"orphan", {3}});
  CHECK(bug_of(model).find("no layer has tensor orphan") != std::string::npos);

  ModelDescription twice = tiny_llama(false);
  twice.layers[1].params[0].tensors = twice.layers[1].params[1].tensors;
  std::swap(twice.layers[1].params[0].tensors[0], twice.layers[1].params[0].tensors[1]);
  CHECK(bug_of(twice).find("tensors are shared in one order") != std::string::npos);
}

TEST_CASE("units are formed from the part of each tensor that a rank uses") {
  ModelDescription model = tiny_llama(false);
  TensorId id = 0;
  while (model.tensor(id).name.find("o_proj") == std::string::npos) ++id;
  TensorInfo& tensor = model.tensors[static_cast<size_t>(id)];
  const int64_t whole = build_units(model).units[1].numel;
  tensor.local = {{0, 24}, {48, 24}};
  const Unit unit = build_units(model).units[1];
  REQUIRE(unit.numel == whole - 48 * 24);
  const auto slice = std::find_if(unit.slices.begin(), unit.slices.end(),
                                  [&](const TensorSlice& found) { return found.tensor == id; });
  REQUIRE(slice != unit.slices.end());
  REQUIRE(slice->offset == 0);
  REQUIRE(slice->extent == 48 * 24);
  // The limit of small units counts that part, too.
  const auto small = [&](int64_t max_elements) {
    int64_t elements = 0;
    for (const Unit& made :
         build_units(model, UnitGranularity::kLayer, {max_elements, INT64_MAX}).units)
      elements += made.holds_small_tensors ? made.numel : 0;
    return elements;
  };
  REQUIRE(small(48 * 24) == small(48 * 24 - 1) + 48 * 24);
}

}  // namespace
}  // namespace ftrun
