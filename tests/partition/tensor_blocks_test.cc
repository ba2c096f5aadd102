#include <algorithm>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "axes/tensor/split.h"
#include "base/file.h"
#include "base/text.h"
#include "model/families.h"
#include "model/model_config.h"
#include "partition/sharding.h"
#include "random_model.h"
#include "source_paths.h"
#include "sweep.h"

#include <catch2/catch.hpp>

// These tests check that no shard cuts a block of kTensorBlock elements, counted from its tensor's
// first element.

namespace ftrun {
namespace {

/// Returns whether [begin, begin + extent) of a tensor of `elements` elements consists of whole
/// blocks, or ends with the tensor.
bool is_whole_blocks(int64_t begin, int64_t extent, int64_t elements) {
  const int64_t end = begin + extent;
  return begin % kTensorBlock == 0 && (end % kTensorBlock == 0 || end == elements);
}

/// Returns the shards that cut a block of a tensor, "shard 3 of 7: model.norm.weight [100, 200)".
std::vector<std::string> cuts_of(const ModelDescription& model, const Partition& partition,
                                 int count) {
  std::vector<std::string> cuts;
  for (int index = 0; index < count; ++index) {
    const Sharding sharding(partition, {count, index}, true);
    for (const Unit& unit : partition.units) {
      const UnitRange own = sharding.own_range(unit.id);
      for (const TensorSlice& slice : slices_in(unit, own.begin, own.end)) {
        const TensorInfo& tensor = model.tensor(slice.tensor);
        if (!is_whole_blocks(slice.offset, slice.extent, tensor.local.numel()))
          cuts.push_back(cat("shard ", index, " of ", count, ": ", tensor.name, " [", slice.offset,
                             ", ", slice.offset + slice.extent, ")"));
      }
    }
  }
  return cuts;
}

/// Returns the configs of the tests' config.json files and of the families without such a file,
/// each with two layers, as more would be alike.
std::vector<ModelConfig> families() {
  std::vector<ModelConfig> found;
  std::set<std::string> names;
  const auto add = [&](ModelConfig config) {
    config.layers = 2;
    config.windows.resize(2);
    names.insert(config.family);
    found.push_back(std::move(config));
  };
  add(parse_model_config(
      R"({"model_type": "gpt2", "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0})", "gpt2"));
  add(parse_model_config(
      R"({"model_type": "opt", "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12,
          "num_attention_heads": 12, "ffn_dim": 3072, "dropout": 0})",
      "opt"));
  add(parse_model_config(
      R"({"model_type": "falcon", "vocab_size": 65024, "hidden_size": 4544,
          "num_hidden_layers": 32, "num_attention_heads": 71})",
      "falcon"));
  const std::string folder = testing::source_dir() + "/tests/model/configs";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path();
    if (path.find(".v4.json") == std::string::npos) continue;
    add(parse_model_config(read_file(path), path));
  }
  std::set<std::string> all;
  for (const Family& family : ftrun::families()) all.emplace(family.model_type);
  REQUIRE(names == all);
  return found;
}

constexpr BatchShape kBatch{1, 64};

/// Lists the tensor splits of every rank for every tensor-parallel degree.
std::vector<TensorSplit> splits_of(const ModelConfig& config) {
  std::vector<TensorSplit> splits;
  for (const int64_t degree : tensor_split_degrees(config))
    for (const int64_t index : std::set<int64_t>{0, degree - 1})
      splits.push_back({static_cast<int>(degree), static_cast<int>(index), true});
  return splits;
}

TEST_CASE(
    "no shard of any family cuts a block of a tensor, for all granularities and numbers of ranks") {
  std::mt19937_64 random(43);
  for (const ModelConfig& config : families())
    for (const TensorSplit& split : splits_of(config)) {
      const ModelDescription model = build_model(config, kBatch, GraphMode::kTrain, {}, {}, split);
      for (const auto granularity :
           {UnitGranularity::kBlock, UnitGranularity::kLayer, UnitGranularity::kModel})
        for (const int64_t small : {int64_t{0}, int64_t{100'000}}) {
          if (random() % sweep_stride(1) != 0) continue;
          const Partition partition = build_units(model, granularity, {small, INT64_MAX});
          for (const int count : {2, 3, 4, 5, 7, 8, 12, 31, 64, 96, 255, 384}) {
            INFO(config.family << " of width " << config.hidden << ", tensor rank " << split.index
                               << " of " << split.degree);
            CHECK(cuts_of(model, partition, count) == std::vector<std::string>{});
          }
        }
    }
}

TEST_CASE("each matrix of every family begins at a block of its unit") {
  for (const ModelConfig& config : families())
    for (const TensorSplit& split : splits_of(config)) {
      const ModelDescription model = build_model(config, kBatch, GraphMode::kTrain, {}, {}, split);
      for (const Unit& unit : build_units(model).units)
        for (const TensorSlice& slice : unit.slices) {
          const TensorInfo& tensor = model.tensor(slice.tensor);
          INFO(tensor.name << " at " << slice.position_in_unit << " of " << unit.name);
          if (tensor.shape.size() > 1) CHECK(slice.position_in_unit % kTensorBlock == 0);
        }
    }
}

/// Returns a model of one layer with a vector of `before` elements, followed by one parameter that
/// consists of `tensors`, given as elements each.
ModelDescription model_of(int64_t before, const std::vector<int64_t>& tensors) {
  ModelDescription model;
  model.tensors.push_back({"before", {before}});
  Layer layer{"layer", LayerKind::kBlock, 0, {{0, {0}, BlockPart::kAttention}}};
  GraphParam param{1, {}, BlockPart::kAttention};
  for (const int64_t elements : tensors) {
    param.tensors.push_back(static_cast<TensorId>(model.tensors.size()));
    model.tensors.push_back({cat("t", model.tensors.size()), {elements}});
  }
  layer.params.push_back(std::move(param));
  model.layers.push_back(std::move(layer));
  return model;
}

std::vector<int64_t> slice_positions(const ModelDescription& model) {
  std::vector<int64_t> found;
  const Partition partition = build_units(model);
  for (const TensorSlice& slice : partition.units[0].slices)
    found.push_back(slice.position_in_unit);
  return found;
}

TEST_CASE(
    "no shard boundary cuts a parameter whose tensors do not all begin at blocks, unless it is too "
    "long") {
  // Biases of Qwen2.5-0.5B: 896 for the queries, 128 each for keys and values.
  CHECK(slice_positions(model_of(3000, {896, 128, 128})) ==
        std::vector<int64_t>{0, 4096, 4992, 5120});
  CHECK(slice_positions(model_of(2800, {896, 128, 128})) ==
        std::vector<int64_t>{0, 2816, 3712, 3840});
  // This one may be cut between its tensors' blocks.
  CHECK(slice_positions(model_of(3000, {1024, 128})) == std::vector<int64_t>{0, 3072, 4096});
  // This one is too long to be kept clear of cuts.
  CHECK(slice_positions(model_of(3000, {4000, 100})) == std::vector<int64_t>{0, 3072, 7072});
}

/// Returns the tensors that follow one which ends within a block, in parameters longer than the
/// shortest shard.
std::set<TensorId> misaligned_tensors(const ModelDescription& model) {
  std::set<TensorId> found;
  for (const Layer& layer : model.layers)
    for (const GraphParam& param : layer.params) {
      int64_t elements = 0;
      for (const TensorId id : param.tensors) elements += model.tensor(id).numel();
      if (elements <= kUnitBlock) continue;
      int64_t before = 0;
      for (const TensorId id : param.tensors) {
        if (before % kTensorBlock != 0) found.insert(id);
        before += model.tensor(id).numel();
      }
    }
  return found;
}

TEST_CASE(
    "in random models, shards cut blocks only of tensors that follow one which ends within a "
    "block") {
  std::mt19937_64 random(41);
  size_t tensors = 0;
  size_t off = 0;
  for (int round = 0; round < 150; ++round) {
    const ModelDescription model = testing::random_model(random);
    const Partition partition =
        build_units(model, static_cast<UnitGranularity>(round % 3), {90, INT64_MAX});
    const std::set<TensorId> exempt = misaligned_tensors(model);
    tensors += model.tensors.size();
    off += exempt.size();
    for (const int count : {2, 3, 5, 8}) {
      for (const std::string& cut : cuts_of(model, partition, count)) {
        INFO(cut);
        CHECK(std::any_of(exempt.begin(), exempt.end(), [&](TensorId id) {
          return cut.find(": " + model.tensor(id).name + " [") != std::string::npos;
        }));
      }
    }
  }
  CHECK(off * 2 < tensors);
}

TEST_CASE("fp32 tensors of layers that compute in 16 bits have a small unit of their own") {
  ModelDescription model = model_of(5, {700, 30});
  model.layers[0].params[1].fp32 = true;
  const Partition partition = build_units(model);
  REQUIRE(partition.units.size() == 2);
  const Unit &usual = partition.units[0], &fp32 = partition.units[1];
  CHECK((usual.name == "layer" && !usual.fp32 && !usual.holds_small_tensors && usual.numel == 5));
  CHECK((fp32.name == "layer.fp32" && fp32.fp32 && fp32.holds_small_tensors && fp32.numel == 730));
}

}  // namespace
}  // namespace ftrun
