#pragma once

#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "axes/tensor/shares.h"
#include "base/dtype.h"
#include "optimizers/optimizer_config.h"
#include "partition/layout.h"
#include "partition/sharding.h"
#include "partition/units.h"
#include "program/program.h"
#include "program/state_options.h"

namespace ftrun {

/// GradientShares are parts of a unit's gradient of which each rank of a group has computed a
/// share: the ranks add these up before any other use.
struct GradientShares {
  GroupId group = kNoGroup;
  std::vector<ShardRange> parts;
};

/// StorageFormat says how elements of a state are stored. Code that needs their bytes asks here,
/// not the dtype.
struct StorageFormat {
  DType dtype = DType::kF32;
  /// Records of bytes (U8) instead of elements.
  PackedFormat packed = {};
  /// The number of neighbouring elements that share one number (Buffer::block).
  int64_t block = 1;

  /// Returns the bytes of `elements` contiguous elements from the beginning of a block
  /// (kTensorBlock).
  int64_t bytes(int64_t elements) const;
  bool operator==(const StorageFormat&) const = default;
};

/// StateSpec says how the state of one unit is held and moved. It holds everything in which ZeRO
/// stages, hybrid sharding, tensor parallelism, precision and offload differ; the store, the passes
/// and the update read it and ask for none of these.
struct StateSpec {
  /// Layers of this stage of the pipeline read the unit. False: the rank has nothing of it.
  bool held = true;
  /// The first stage that holds the unit, and whether this is that stage, which adds its part to
  /// the gradient norm, and saves it.
  int first_stage = 0;
  bool counted = true;
  /// Another stage has a copy of the unit and makes a share of its gradient.
  bool copied = false;
  /// The unit trains. A frozen one has no gradient and no optimizer state and is never
  /// updated; its parameters are held and gathered like those of others.
  bool trainable = true;
  /// Ranks that hold a part each of what is cut, and ranks that hold the same as this one.
  GroupId shard = kNoGroup;
  GroupId replica = kNoGroup;
  /// The place of this rank in `shard`; that of a single rank where there is no such group.
  ShardPlace place;
  /// The states that are cut over `shard`; each rank holds the rest whole.
  bool cuts_parameters = false;
  bool cuts_gradients = false;
  bool cuts_optimizer = false;
  /// Parameters are brought before layers read them and freed afterwards.
  bool gathered = false;
  /// Gradients of each micro-batch have a buffer of their own, are reduced when they are complete,
  /// and then added to the sum. False: lists add them up, and the sum is reduced.
  bool reduces_micro_batches = false;
  /// A reduction of cut gradients leaves each rank its part. False: all of the sum.
  bool reduce_scatter = true;
  std::vector<GradientShares> shares;
  std::vector<NormRange> norm_ranges;

  /// The tier of each state between uses.
  Tier parameters = Tier::kDevice;
  Tier gradients = Tier::kDevice;
  Tier optimizer = Tier::kDevice;

  /// The storage format of each state: parameters that layers read, gradients as layers write them
  /// and as they are sent, and weights that the optimizer updates.
  StorageFormat compute;
  StorageFormat gradient;
  StorageFormat communication;
  StorageFormat master;
  /// The format of each optimizer state; nothing where none of its tensors has it.
  std::vector<std::optional<StorageFormat>> states;
  /// The optimizer updates master weights, from which those that layers read are made.
  bool has_master = false;
};

/// Cuts a rank's part into the intervals that one update takes at a time: one interval where it is
/// updated on the device, else intervals of at most `update_elements`.
std::vector<ShardRange> update_intervals(const ShardRange& own, Tier optimizer,
                                         int64_t update_elements);

/// Says how an update treats a tensor.
UpdateKind update_kind(const ModelDescription& model, const StateOptions& options,
                       const Slice& slice);

/// StraddlingTensor is the place of the scales of a tensor's blocks among those of all tensors of a
/// stage that straddle blocks: each rank has all of them, whichever elements it has. Scales of
/// tensors that are updated on the device lie in one buffer, those of others in another.
struct StraddlingTensor {
  TensorId tensor = -1;
  UnitId unit = -1;
  Tier tier = Tier::kDevice;
  /// Blocks of the tensors before this one in the buffer, and its own.
  int64_t first = 0;
  int64_t blocks = 0;
};
std::vector<StraddlingTensor> straddling_tensors(const ModelDescription& model,
                                                 const Partition& partition,
                                                 const StateOptions& options,
                                                 const std::vector<StateSpec>& specs);

/// Returns a function that says of which tensors an optimizer keeps states as codes; an empty
/// function where there are none.
std::function<bool(const TensorInfo&)> coded_tensors(const ModelDescription& model,
                                                     const OptimizerConfig& optimizer);

/// StoredState is a state of a tensor that trains, as checkpoints hold it. `state` is that of
/// StatePiece.
struct StoredState {
  TensorId tensor = -1;
  int32_t state = 0;
  DType dtype = DType::kF32;
  /// Elements of the tensor that one element of the state stands for (Buffer::block).
  int64_t block = 1;
};

/// Returns the shape of a state that has a number for each block of a tensor of this shape: rows of
/// blocks where the tensor's rows are whole blocks, else a list.
Dims blocked_shape(const Dims& shape, int64_t block);

/// Lists the stored states of the whole model, whichever stage of a pipeline has them: a stage may
/// have none.
std::vector<StoredState> stored_states(const ModelDescription& model, const Partition& partition,
                                       const StateOptions& options);

/// Makes the specification of every unit, indexed by its id. `micro_batches` is that of
/// UnitPlacement.
std::vector<StateSpec> state_specs(const ModelDescription& model, const Partition& partition,
                                   const StateOptions& options, const StateGroups& groups,
                                   int32_t micro_batches);

}  // namespace ftrun
