#include "program/state_spec.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "optimizers/optimizers.h"

namespace ftrun {
namespace {

/// Returns whether the gradients of each micro-batch have their own buffer and are reduced, and
/// then added to the sum. With several micro-batches this holds for every tier of the optimizer,
/// because the tier must not change the order of additions. With one micro-batch there is nothing
/// to add, so a single rank keeps the gradients where they are computed, unless the optimizer is in
/// another tier.
bool reduces_each_micro_batch(const StateOptions& options, GroupPlace place,
                              int32_t micro_batches) {
  return options.zero_stage >= 2 &&
         (place.count > 1 || micro_batches > 1 || options.optimizer_tier != Tier::kDevice);
}

/// Chooses the tier of each unit's optimizer state: in each pipeline stage the first units move to
/// the offload tier, until the offloaded share of the stage's state is reached. All ranks compute
/// the same result for the units of all stages.
std::vector<Tier> optimizer_tiers(const Partition& partition, const StateOptions& options) {
  const auto may_move = [](const Unit& unit) {
    return unit.trainable && !unit.holds_small_tensors;
  };
  const auto stage_of = [&](const Unit& unit) {
    return static_cast<size_t>(*stages_of(unit, options.pipeline).begin());
  };
  const auto stages = static_cast<size_t>(options.pipeline.stages());
  std::vector<int64_t> total(stages, 0), offloaded(stages, 0);
  for (const Unit& unit : partition.units)
    if (may_move(unit)) total[stage_of(unit)] += unit.padded_numel;
  std::vector<Tier> tiers;
  for (const Unit& unit : partition.units) {
    int64_t& of_stage = offloaded[stage_of(unit)];
    const bool is_below_share =
        static_cast<double>(of_stage) <
        options.optimizer_ratio * static_cast<double>(total[stage_of(unit)]);
    const bool moves = options.zero_stage > 0 && may_move(unit) && is_below_share;
    if (moves) of_stage += unit.padded_numel;
    tiers.push_back(moves ? options.optimizer_tier : Tier::kDevice);
  }
  return tiers;
}

/// Lists the parts of a unit whose partial gradients the tensor-parallel ranks sum, and, if two
/// stages hold copies of the unit's matrix, the parts that these stages sum.
std::vector<PartialGradients> partial_gradients_of(const Unit& unit, const ModelDescription& model,
                                                   const StateOptions& options,
                                                   const GroupCollection& groups) {
  auto parts = tensor_partial_gradients(unit, model, options, groups);
  if (stages_of(unit, options.pipeline).size() > 1)
    for (const TensorSlice& slice : unit.slices)
      parts[groups.first_and_last_stage].push_back(
          {slice.position_in_unit, slice.position_in_unit + slice.extent});
  std::vector<PartialGradients> partial;
  for (auto& [group, of_group] : parts) partial.push_back({group, std::move(of_group)});
  return partial;
}

DType master_dtype(const Unit& unit, const StateOptions& options) {
  return unit.fp32 ? DType::kF32 : options.master;
}

StateFormats formats_of(const Unit& unit, const ModelDescription& model,
                        const StateOptions& options) {
  StateFormats formats;
  formats.compute = {model.dtypes.compute};
  if (unit.quantized) formats.compute = {DType::kU8, model.dtypes.quantized};
  if (unit.fp32) formats.compute = {DType::kF32};
  formats.gradient = {model.dtypes.gradients};
  formats.communication = {options.communication};
  formats.master = {master_dtype(unit, options)};
  for (const OptimizerStateSpec& state : options.optimizer_states) {
    const bool has_state = state.is_8bit ? unit.has_8bit_states : unit.has_plain_states;
    formats.states.push_back(
        has_state ? std::optional<StorageFormat>({.dtype = state.dtype, .block = state.block})
                  : std::nullopt);
  }
  return formats;
}

/// Sets which pipeline stages use the unit.
void set_stages(const Unit& unit, const StateOptions& options, StateSpec& spec) {
  const std::set<int> stages = stages_of(unit, options.pipeline);
  require(stages.size() <= (options.ties_first_and_last_stage ? 2 : 1),
          "only tied matrices lie on two stages");
  spec.shared_by_stages = stages.size() > 1;
  spec.used_by_stage = stages.contains(options.pipeline_stage);
  spec.first_stage = *stages.begin();
  spec.is_first_stage = options.pipeline_stage == spec.first_stage;
}

/// Sets how the gradients of a unit that trains are stored and reduced, and whether it has master
/// weights. All other members of `spec` are set already.
void set_training(const Unit& unit, const ModelDescription& model, const StateOptions& options,
                  const GroupCollection& groups, int32_t micro_batches, StateSpec& spec) {
  // A unit that two stages share is reduced once at the end of the step. Otherwise the last stage
  // would wait for the first stage's partial gradient in every micro-batch.
  spec.reduces_each_micro_batch =
      !spec.shared_by_stages && reduces_each_micro_batch(options, spec.shard_place, micro_batches);
  spec.sharded.gradients = spec.sharded.optimizer && spec.reduces_each_micro_batch;
  spec.reduce_scatter = spec.sharded.gradients || options.reduce_scatter;
  spec.partial_gradients = partial_gradients_of(unit, model, options, groups);
  spec.gradient_norm_ranges = ftrun::gradient_norm_ranges(unit, model);
  const bool on_host = spec.reduces_each_micro_batch && spec.tiers.optimizer != Tier::kDevice;
  spec.tiers.gradients = on_host ? Tier::kHost : Tier::kDevice;
  spec.has_master = spec.formats.compute != spec.formats.master ||
                    spec.tiers.parameters != spec.tiers.optimizer;
}

}  // namespace

std::vector<UnitRange> list_update_intervals(const UnitRange& shard, Tier optimizer,
                                             int64_t update_elements) {
  const bool on_device = optimizer == Tier::kDevice;
  // Disk transfers are made of whole blocks.
  require(on_device || update_elements % kUnitBlock == 0, "updates begin on blocks");
  const int64_t interval_elements = on_device ? shard.size() : update_elements;
  std::vector<UnitRange> intervals;
  for (int64_t begin = shard.begin; begin < shard.end; begin += interval_elements)
    intervals.push_back({begin, std::min(begin + interval_elements, shard.end)});
  return intervals;
}

Dims block_values_shape(const Dims& shape, int64_t block) {
  if (block == 1) return shape;
  if (shape.back() % block != 0) return {divide_up(element_count(shape), block)};
  Dims blocks = shape;
  blocks.back() /= block;
  return blocks;
}

UpdateKind update_kind_of(const ModelDescription& model, const StateOptions& options,
                          const TensorSlice& slice) {
  const TensorInfo& tensor = model.tensor(slice.tensor);
  UpdateKind kind{!options.decays || options.decays(tensor),
                  options.has_8bit_states && options.has_8bit_states(tensor)};
  if (kind.has_8bit_states && straddles_blocks(tensor, slice))
    kind.straddling_tensor = slice.tensor;
  return kind;
}

std::vector<StraddlingTensor> list_straddling_tensors(const ModelDescription& model,
                                                      const Partition& partition,
                                                      const StateOptions& options,
                                                      const std::vector<StateSpec>& specs) {
  std::vector<StraddlingTensor> tensors;
  std::map<Tier, int64_t> blocks;
  for (const Unit& unit : partition.units) {
    const StateSpec& spec = specs[static_cast<size_t>(unit.id)];
    if (!spec.used_by_stage || !spec.trainable || !unit.has_8bit_states) continue;
    const Tier tier = spec.tiers.optimizer == Tier::kDevice ? Tier::kDevice : Tier::kHost;
    for (const TensorSlice& slice : unit.slices) {
      if (update_kind_of(model, options, slice).straddling_tensor < 0) continue;
      const int64_t tensor_blocks = divide_up(model.tensor(slice.tensor).numel(), kTensorBlock);
      tensors.push_back({slice.tensor, unit.id, tier, blocks[tier], tensor_blocks});
      blocks[tier] += tensor_blocks;
    }
  }
  return tensors;
}

std::function<bool(const TensorInfo&)> tensors_with_8bit_states(const ModelDescription& model,
                                                                const OptimizerConfig& optimizer) {
  if (!optimizer_traits(optimizer.type).has_8bit_states) return {};
  std::set<std::string> fp32_names;
  for (const Layer& layer : model.layers)
    for (const GraphParam& param : layer.params)
      for (const TensorId id : param.tensors)
        if (optimizer.fp32_embeddings && layer.kind == LayerKind::kEmbedding)
          fp32_names.insert(model.tensor(id).name);
  return [fp32_names = std::move(fp32_names),
          least = optimizer.min_8bit_size](const TensorInfo& tensor) {
    return static_cast<double>(tensor.numel()) >= least && !fp32_names.contains(tensor.name);
  };
}

std::vector<StoredState> list_stored_states(const ModelDescription& model,
                                            const Partition& partition,
                                            const StateOptions& options) {
  std::map<TensorId, DType> masters;
  for (const Unit& unit : partition.units)
    for (const TensorSlice& slice : unit.slices)
      if (unit.trainable) masters.emplace(slice.tensor, master_dtype(unit, options));
  std::vector<StoredState> saved;
  for (const auto& [tensor, dtype] : masters) {
    saved.push_back({tensor, UnitStatePiece::kParam, dtype});
    for (size_t state = 0; state < options.optimizer_states.size(); ++state) {
      const OptimizerStateSpec& spec = options.optimizer_states[state];
      if (options.has_state(model.tensor(tensor), spec))
        saved.push_back({tensor, static_cast<int32_t>(state), spec.dtype, spec.block});
    }
  }
  return saved;
}

std::vector<StateSpec> make_state_specs(const ModelDescription& model, const Partition& partition,
                                        const StateOptions& options, const GroupCollection& groups,
                                        int32_t micro_batches) {
  const Sharding sharding = shard_units(partition, options);
  const std::vector<Tier> tiers = optimizer_tiers(partition, options);
  std::vector<StateSpec> specs;
  for (const Unit& unit : partition.units) {
    StateSpec spec;
    set_stages(unit, options, spec);
    spec.shard_group = shard_group(groups, unit);
    spec.replica_group = groups.replica;
    spec.shard_place = shard_place(options, unit);
    spec.gathered = options.zero_stage == 3 && !unit.holds_small_tensors &&
                    (spec.shard_place.count > 1 || options.parameter_tier != Tier::kDevice);
    spec.sharded.parameters = sharding.is_sharded(unit.id) && options.zero_stage == 3;
    spec.tiers.parameters = spec.gathered ? options.parameter_tier : Tier::kDevice;
    spec.formats = formats_of(unit, model, options);
    spec.trainable = unit.trainable;
    if (spec.trainable) {
      spec.sharded.optimizer = sharding.is_sharded(unit.id);
      spec.tiers.optimizer = tiers[static_cast<size_t>(unit.id)];
      set_training(unit, model, options, groups, micro_batches, spec);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace ftrun
