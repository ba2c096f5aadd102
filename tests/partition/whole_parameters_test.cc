#include "partition/whole_parameters.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/text.h"
#include "partition/sharding.h"
#include "random_model.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using fixtures::random_model;
using fixtures::tiny_llama;

int64_t elements_of(const ModelDescription& model, const GraphParam& param) {
  int64_t elements = 0;
  for (const TensorId id : param.tensors) elements += model.tensor(id).local_numel();
  return elements;
}

/// Every parameter lies in one shard of its unit, its tensors one after another.
void check_owners(const ModelDescription& model, const Partition& partition, int owners) {
  for (size_t layer = 0; layer < model.layers.size(); ++layer)
    for (size_t i = 0; i < model.layers[layer].params.size(); ++i) {
      const GraphParam& param = model.layers[layer].params[i];
      const ParamPlace place = partition.places[layer][i];
      const Unit& unit = partition.unit(place.unit);
      if (unit.small) continue;
      const int64_t stride = shard_stride(unit, owners);
      const int64_t end = place.position + elements_of(model, param);
      REQUIRE(place.position % kTensorBlock == 0);
      REQUIRE(place.position / stride == (end - 1) / stride);
      REQUIRE(end <= unit.padded);
      int64_t position = place.position;
      for (const TensorId id : param.tensors) {
        const auto slice = std::find_if(unit.slices.begin(), unit.slices.end(),
                                        [&](const Slice& s) { return s.tensor == id; });
        REQUIRE(slice != unit.slices.end());
        REQUIRE(slice->position_in_unit == position);
        position += slice->extent;
      }
    }
}

/// No shard is fuller than an equal share and the largest parameter together.
void check_balance(const ModelDescription& model, const Partition& partition, int owners) {
  for (const Unit& unit : partition.units) {
    if (unit.small) continue;
    int64_t all = 0;
    int64_t largest = 0;
    for (size_t layer = 0; layer < model.layers.size(); ++layer)
      for (size_t i = 0; i < model.layers[layer].params.size(); ++i) {
        if (partition.places[layer][i].unit != unit.id || unit.layers[0] != static_cast<int>(layer))
          continue;
        const int64_t elements = elements_of(model, model.layers[layer].params[i]) + kTensorBlock;
        all += elements;
        largest = std::max(largest, elements);
      }
    if (unit.layers.size() > 1) continue;
    REQUIRE(shard_stride(unit, owners) <= all / owners + largest + kUnitBlock);
  }
}

TEST_CASE("two owners of a layer: gate and up to one, the other matrices and the norms to the other") {
  const ModelDescription model = tiny_llama(true);
  const Partition partition = own_whole_parameters(build_units(model), model, 2);
  const Unit& unit = partition.unit(1);
  // q, k, v 3840; o 2304; gate, up 7296; down 3648; two norms of 48.
  CHECK(shard_stride(unit, 2) == 2 * kUnitBlock + kUnitBlock);
  CHECK(unit.padded == 6 * kUnitBlock);
  std::vector<std::string> first;
  for (const Slice& slice : slices_in(unit, 0, shard_stride(unit, 2)))
    first.push_back(model.tensor(slice.tensor).name);
  CHECK(std::count(first.begin(), first.end(), "model.layers.0.mlp.gate_proj.weight") == 1);
  CHECK(std::count(first.begin(), first.end(), "model.layers.0.mlp.up_proj.weight") == 1);
  CHECK(std::count(first.begin(), first.end(), "model.layers.0.self_attn.q_proj.weight") == 0);
}

TEST_CASE("random models: every parameter has one owner, nothing is lost, shards are about equally full") {
  std::mt19937_64 random(51);
  for (int round = 0; round < 100; ++round) {
    const ModelDescription model = random_model(random);
    const Partition before =
        build_units(model, static_cast<UnitGranularity>(round % 3), {60, INT64_MAX});
    for (const int owners : {1, 2, 3, 5, 8}) {
      const Partition partition = own_whole_parameters(before, model, owners);
      check_owners(model, partition, owners);
      check_balance(model, partition, owners);
      REQUIRE(partition.units.size() == before.units.size());
      for (const Unit& unit : partition.units) {
        REQUIRE(unit.numel == before.unit(unit.id).numel);
        REQUIRE(unit.padded % kUnitBlock == 0);
        int64_t held = 0;
        for (int index = 0; index < owners; ++index) {
          const ShardRange own = Sharding(partition, {owners, index}, false).own(unit.id);
          if (unit.small && index > 0) continue;
          int64_t end = own.begin;
          for (const Slice& slice : slices_in(unit, own.begin, own.end)) {
            REQUIRE(slice.position_in_unit >= end);
            end = slice.position_in_unit + slice.extent;
            held += slice.extent;
            if (!unit.small) REQUIRE(slice.extent == model.tensor(slice.tensor).local_numel());
          }
        }
        REQUIRE(held == unit.numel);
      }
    }
  }
}

}  // namespace
}  // namespace ftrun
