#pragma once

#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "axes/tensor/gradient_parts.h"
#include "base/dtype.h"
#include "optimizers/optimizer_config.h"
#include "partition/flat_layout.h"
#include "partition/sharding.h"
#include "partition/units.h"
#include "program/program.h"
#include "program/state_options.h"
#include "program/storage_format.h"

namespace ftrun {

/// PartialGradients lists the parts of a unit of which each rank of a group computes a partial
/// gradient. The ranks sum these parts before any other use.
struct PartialGradients {
  GroupId group = kNoGroup;
  std::vector<UnitRange> parts;
};

/// ShardedStates says which states of a unit are sharded over StateSpec::shard_group. Each rank has
/// all elements of the other states.
struct ShardedStates {
  bool parameters = false;
  bool gradients = false;
  bool optimizer = false;
};

/// StateTiers holds the tier in which each state of a unit is stored between uses.
struct StateTiers {
  Tier parameters = Tier::kDevice;
  Tier gradients = Tier::kDevice;
  Tier optimizer = Tier::kDevice;
};

/// StateFormats holds the storage format of each state of a unit.
struct StateFormats {
  /// Parameters that layers read.
  StorageFormat compute;
  /// Gradients as layers write them, and as they are sent.
  StorageFormat gradient;
  StorageFormat communication;
  /// Weights that the optimizer updates.
  StorageFormat master;
  /// The optimizer states, by number; no value for a state that none of the unit's tensors has.
  std::vector<std::optional<StorageFormat>> states;
};

/// StateSpec describes how the state of one unit is stored and moved. It expresses everything in
/// which ZeRO stages, hybrid sharding, tensor parallelism, precision and offload differ, so the
/// placement, the passes and the update need to know none of these.
struct StateSpec {
  /// Says whether layers of this pipeline stage use the unit. False: the rank has no part of the
  /// unit.
  bool used_by_stage = true;
  /// The first pipeline stage that uses the unit. It adds the unit to the gradient norm, and saves
  /// it. `is_first_stage`: this rank's stage is the first.
  int first_stage = 0;
  bool is_first_stage = true;
  /// Says whether another stage has a copy of the unit and computes a partial gradient of it.
  bool shared_by_stages = false;
  /// Says whether the unit trains. A frozen unit has no gradient and no optimizer state, and is
  /// never updated; its parameters are stored and gathered like those of other units.
  bool trainable = true;
  /// The group of ranks that the unit is sharded over, and the group of ranks that hold the same
  /// shard as this rank.
  GroupId shard_group = kNoGroup;
  GroupId replica_group = kNoGroup;
  /// This rank's place in `shard_group`; place 0 of 1 if there is no such group.
  GroupPlace shard_place;
  ShardedStates sharded;
  /// Says whether parameters are gathered before layers read them and freed afterwards.
  bool gathered = false;
  /// Says whether the gradient of each micro-batch has its own buffer, is reduced when it is
  /// complete, and is then added to the sum. False: the operation lists of all micro-batches add to
  /// one gradient, which is reduced at the end.
  bool reduces_each_micro_batch = false;
  /// Says whether the reduction of a sharded gradient gives each rank only its shard. False: it
  /// gives each rank the whole sum.
  bool reduce_scatter = true;
  std::vector<PartialGradients> partial_gradients;
  std::vector<GradientNormRange> gradient_norm_ranges;

  StateTiers tiers;
  StateFormats formats;
  /// Says whether the optimizer updates master weights, from which the weights that layers read are
  /// made.
  bool has_master = false;
};

/// Cuts a rank's shard into the intervals that one update processes at a time: one interval if the
/// shard is updated on the device, else intervals of at most `update_elements` elements.
std::vector<UnitRange> list_update_intervals(const UnitRange& shard, Tier optimizer,
                                             int64_t update_elements);

/// Returns how an update treats a tensor.
UpdateKind update_kind_of(const ModelDescription& model, const StateOptions& options,
                          const TensorSlice& slice);

/// StraddlingTensor says where the scales of one tensor that straddles blocks lie among the scales
/// of all such tensors of a pipeline stage. Each rank holds all these scales, even of elements that
/// it does not have. Scales of tensors that are updated on the device lie in one buffer, scales of
/// other tensors in a second buffer.
struct StraddlingTensor {
  TensorId tensor = -1;
  UnitId unit = -1;
  Tier tier = Tier::kDevice;
  /// The number of blocks of all tensors before this one in the buffer (`first`), and of this
  /// tensor (`blocks`).
  int64_t first = 0;
  int64_t blocks = 0;
};
std::vector<StraddlingTensor> list_straddling_tensors(const ModelDescription& model,
                                                      const Partition& partition,
                                                      const StateOptions& options,
                                                      const std::vector<StateSpec>& specs);

/// Returns a function that selects the tensors whose states the optimizer keeps as codes; an empty
/// function if there are no such tensors.
std::function<bool(const TensorInfo&)> tensors_with_8bit_states(const ModelDescription& model,
                                                                const OptimizerConfig& optimizer);

/// StoredState is a state of a trained tensor, as checkpoints store it. `state` has the same
/// meaning as in UnitStatePiece.
struct StoredState {
  TensorId tensor = -1;
  int32_t state = 0;
  DType dtype = DType::kF32;
  /// The number of elements of the tensor that one element of the state stands for
  /// (StorageFormat::block).
  int64_t block = 1;
};

/// Returns the shape of a state that has one value for each block of a tensor with shape `shape`.
/// If each row of the tensor is a whole number of blocks, the result has rows of blocks; otherwise
/// it has one dimension.
Dims block_values_shape(const Dims& shape, int64_t block);

/// Lists the stored states of the whole model, over all stages of the pipeline. A stage may hold
/// none.
std::vector<StoredState> list_stored_states(const ModelDescription& model,
                                            const Partition& partition,
                                            const StateOptions& options);

/// Makes the specification of every unit, indexed by its id. `micro_batches` is the same as for
/// UnitPlacement.
std::vector<StateSpec> make_state_specs(const ModelDescription& model, const Partition& partition,
                                        const StateOptions& options, const GroupCollection& groups,
                                        int32_t micro_batches);

}  // namespace ftrun
