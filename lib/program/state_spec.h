#pragma once

#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "axes/tensor/shares.h"
#include "base/dtype.h"
#include "optimizers/optimizer_config.h"
#include "partition/flat_layout.h"
#include "partition/sharding.h"
#include "partition/units.h"
#include "program/program.h"
#include "program/state_options.h"
#include "program/storage_format.h"

namespace ftrun {

/// GradientShares are the parts of a unit's gradient of which each rank of a group has computed a
/// term. The ranks sum these parts before any other use.
struct GradientShares {
  GroupId group = kNoGroup;
  std::vector<UnitRange> parts;
};

/// StateCuts says which states of a unit are cut over StateSpec::shard; each rank holds the others
/// whole.
struct StateCuts {
  bool parameters = false;
  bool gradients = false;
  bool optimizer = false;
};

/// StateTiers holds the tier of each state of a unit between uses.
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
  /// The optimizer states; nothing for a state that none of the unit's tensors has.
  std::vector<std::optional<StorageFormat>> states;
};

/// StateSpec describes how the state of one unit is held and moved. It expresses everything in
/// which ZeRO stages, hybrid sharding, tensor parallelism, precision and offload differ, so the
/// placement, the passes and the update need to know none of these.
struct StateSpec {
  /// Layers of this stage of the pipeline read the unit. False: the rank holds nothing of it.
  bool held = true;
  /// The first stage that holds the unit, and whether it is this rank's stage. That stage adds the
  /// unit to the gradient norm, and saves it.
  int first_stage = 0;
  bool counted = true;
  /// Another stage holds a copy of the unit and computes a term of its gradient.
  bool shared_by_stages = false;
  /// The unit trains. A frozen one has no gradient and no optimizer state and is never
  /// updated; its parameters are held and gathered like those of others.
  bool trainable = true;
  /// The group of ranks that each hold a part of a unit that is cut, and the group of ranks that
  /// hold the same part as this rank.
  GroupId shard = kNoGroup;
  GroupId replica = kNoGroup;
  /// This rank's place in `shard`; the place of a single rank where there is no such group.
  MemberIndex place;
  StateCuts cuts;
  /// Parameters are gathered before layers read them and freed afterwards.
  bool gathered = false;
  /// The gradient of each micro-batch has its own buffer, is reduced when it is complete, and is
  /// then added to the sum. False: lists add to one gradient, whose sum is reduced.
  bool reduces_micro_batches = false;
  /// A reduction of a cut gradient leaves each rank its part. False: it leaves the whole sum on
  /// each rank.
  bool reduce_scatter = true;
  std::vector<GradientShares> shares;
  std::vector<NormRange> norm_ranges;

  StateTiers tiers;
  StateFormats formats;
  /// The optimizer updates master weights, from which the weights that layers read are made.
  bool has_master = false;
};

/// Cuts a rank's part into the intervals that one update processes at a time: one interval where it
/// is updated on the device, else intervals of at most `update_elements`.
std::vector<UnitRange> update_intervals(const UnitRange& own, Tier optimizer,
                                        int64_t update_elements);

/// Returns how an update treats a tensor.
UpdateKind update_kind(const ModelDescription& model, const StateOptions& options,
                       const Slice& slice);

/// StraddlingTensor is the place of the scales of one tensor that straddles blocks, among the
/// scales of all such tensors of a stage. Each rank holds all these scales, whichever elements of
/// the tensors it has. Scales of tensors that are updated on the device lie in one buffer, scales
/// of other tensors in another.
struct StraddlingTensor {
  TensorId tensor = -1;
  UnitId unit = -1;
  Tier tier = Tier::kDevice;
  /// The number of blocks of the tensors before this one in the buffer, and of the tensor itself.
  int64_t first = 0;
  int64_t blocks = 0;
};
std::vector<StraddlingTensor> straddling_tensors(const ModelDescription& model,
                                                 const Partition& partition,
                                                 const StateOptions& options,
                                                 const std::vector<StateSpec>& specs);

/// Returns a function that selects the tensors whose states the optimizer keeps as codes; an empty
/// function where there are none.
std::function<bool(const TensorInfo&)> coded_tensors(const ModelDescription& model,
                                                     const OptimizerConfig& optimizer);

/// StoredState is a state of a tensor that trains, as checkpoints hold it. `state` is that of
/// StatePiece.
struct StoredState {
  TensorId tensor = -1;
  int32_t state = 0;
  DType dtype = DType::kF32;
  /// The number of elements of the tensor that one element of the state stands for (Buffer::block).
  int64_t block = 1;
};

/// Returns the shape of a state that has one number for each block of a tensor of this shape: rows
/// of blocks where each row of the tensor is whole blocks, else a list.
Dims blocked_shape(const Dims& shape, int64_t block);

/// Lists the stored states of the whole model, whichever stage of a pipeline holds them; a stage
/// may hold none.
std::vector<StoredState> stored_states(const ModelDescription& model, const Partition& partition,
                                       const StateOptions& options);

/// Makes the specification of every unit, indexed by its id. `micro_batches` is the same as for
/// UnitPlacement.
std::vector<StateSpec> state_specs(const ModelDescription& model, const Partition& partition,
                                   const StateOptions& options, const StateGroups& groups,
                                   int32_t micro_batches);

}  // namespace ftrun
