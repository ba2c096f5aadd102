#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "axes/pipeline/pipeline_layout.h"
#include "base/dtype.h"
#include "model/description.h"
#include "partition/sharding.h"
#include "program/program.h"

namespace ftrun {

/// OptimizerStateSpec describes a state that the optimizer has for each element: its storage, its
/// initial value and its name.
struct OptimizerStateSpec {
  DType dtype = DType::kF32;
  double initial_value = 0.0;
  /// The state belongs to tensors whose states are codes (StateOptions::has_8bit_states). False: to
  /// the other tensors.
  bool is_8bit = false;
  /// The number of neighboring elements that share one value: the block size for the scales of
  /// codes, else 1.
  int64_t block = 1;
  /// The name in checkpoints: "exp_avg", "exp_avg_absmax".
  std::string name = {};
};

/// StateOptions describes how model states are kept and moved. ZeRO stages, precisions and offload
/// targets differ only in these options.
struct StateOptions {
  /// ZeRO stage: 0 nothing is sharded, 1 optimizer state, 2 and gradients, 3 and parameters.
  int zero_stage = 0;
  /// This rank's place along the axis data. The ranks along this axis read different sequences and
  /// share one copy of the state. data_parallel_place() and state_place() return the place among
  /// all ranks that divide the sequences, or the state.
  GroupPlace data;
  /// The number of copies of the state (hybrid sharding), and the copy that this rank belongs to.
  int replicas = 1;
  int replica = 0;
  /// This rank's place among the ranks that divide the tokens of each sequence (context
  /// parallelism). They read the same sequences, and share one copy of the state with all ranks
  /// along data.
  GroupPlace context;
  /// The number of neighboring state ranks that together keep a second copy of the gathered
  /// parameters of stage 3, the secondary shards (ZeRO++ hpZ): shards [k, k+1) x secondary_shards.
  /// It divides the number of state ranks; 1 = none.
  int secondary_shards = 1;
  /// This rank's place among the ranks that share each layer (tensor parallelism), and the number
  /// of neighbors among them that use the same part of a tensor with fewer parts than ranks
  /// (key/value heads); 1 = none.
  GroupPlace tensor;
  int tensor_copies = 1;
  /// The layers of each stage of the pipeline, and the number of this stage. With
  /// `ties_first_and_last_stage` the first and the last stage each have a copy of the same matrix
  /// (tied embeddings).
  PipelineLayout pipeline;
  int pipeline_stage = 0;
  bool ties_first_and_last_stage = false;
  /// Says whether gradients are reduced to shards. False: stage 1 sums whole gradients on every
  /// rank (DeepSpeed's reduce_scatter).
  bool reduce_scatter = true;
  /// The dtype in which gradients are sent. If it is not the dtype of the gradients, they are
  /// converted before and after the collective.
  DType communication = DType::kF32;
  /// The dtype of the weights that the optimizer updates.
  DType master = DType::kF32;
  /// The tiers in which parameters (stage 3) and optimizer state (stages 1 to 3) are stored between
  /// uses. Small units stay on the device.
  Tier parameter_tier = Tier::kDevice;
  Tier optimizer_tier = Tier::kDevice;
  /// The share of the optimizer state that is kept in optimizer_tier (DeepSpeed's
  /// offload_optimizer.ratio).
  double optimizer_ratio = 1.0;
  /// The states that an update reads and writes, in addition to the weights.
  std::vector<OptimizerStateSpec> optimizer_states{{}, {}};
  /// The number of elements that one update processes at a time if the state is in another tier.
  int64_t update_elements = int64_t{2} << 20;
  /// The size in bytes from which a gradient buffer is full. Units that follow each other in
  /// backward share a gradient buffer until it is full. A buffer occupies memory from the first of
  /// its gradients to their update; other buffers of the step can use that memory before.
  int64_t gradient_buffer_bytes = int64_t{1} << 16;
  /// The maximum number of values that ranks exchange for the gradient norm (1 MiB of F64), unless
  /// there are more units than that.
  int64_t max_gradient_norm_slots = int64_t{1} << 17;
  /// Says whether memory is reserved for a copy of all saved state, from which a checkpoint is
  /// written while training continues.
  bool snapshots = false;
  /// Selects the tensors that weight decay applies to; all when empty.
  std::function<bool(const TensorInfo&)> decays;
  /// Selects the tensors whose states are codes; none when empty. The partition must have been made
  /// with the same function.
  std::function<bool(const TensorInfo&)> has_8bit_states;

  /// Returns whether a tensor has `state`, one of `optimizer_states`.
  bool has_state(const TensorInfo& tensor, const OptimizerStateSpec& state) const {
    return state.is_8bit == (has_8bit_states && has_8bit_states(tensor));
  }
};

/// Returns this rank's place among the data-parallel ranks (data_replicate x data), which read
/// different sequences: batches, the loader and evaluations are divided among them.
inline GroupPlace data_parallel_place(const StateOptions& state) {
  return {state.replicas * state.data.count, state.replica * state.data.count + state.data.index};
}

/// Returns this rank's place among the state ranks: the ranks along kStateAxes (data x context).
/// They share one copy of the state that belongs to one tensor-parallel rank of one pipeline stage.
inline GroupPlace state_place(const StateOptions& state) {
  return {state.data.count * state.context.count,
          state.data.index * state.context.count + state.context.index};
}

/// Returns this rank's place among the ranks that a unit is sharded over. At present these are the
/// state ranks for every unit. Units that differ between state ranks, such as experts, would have
/// another place here and another group in their StateSpec.
inline GroupPlace shard_place(const StateOptions& state, const Unit& /*unit*/) {
  return state_place(state);
}

/// UnitSharding specifies which ranks of GroupCollection::model hold a unit's weights that the
/// optimizer updates. `split_ranks` neighboring ranks divide the unit's tensors among themselves:
/// the tensor-parallel ranks. Each neighbor's part of the unit is divided into `parts`.
struct UnitSharding {
  int first_rank = 0;
  int split_ranks = 1;
  int parts = 1;
  /// Returns the rank that holds part `part` of neighbor `index`'s share of the unit.
  int rank(int part, int index) const { return first_rank + part * split_ranks + index; }
  bool operator==(const UnitSharding&) const = default;
};

/// Returns the sharding of a unit whose first pipeline stage is `stage`. If the unit `is_sharded`,
/// each state rank holds a part of it; otherwise each holds all of it.
inline UnitSharding unit_sharding(const StateOptions& state, const Unit& unit, int stage,
                                  bool is_sharded) {
  const int parts = is_sharded ? shard_place(state, unit).count : 1;
  return {stage * state_place(state).count * state.tensor.count, state.tensor.count, parts};
}

/// Returns the number of ranks whose terms are summed to a gradient: the state ranks of all
/// replicas.
inline int count_gradient_ranks(const StateOptions& state) {
  return state_place(state).count * state.replicas;
}

/// Returns whether this is the lowest rank of its stage of the pipeline.
inline bool is_first_of_stage(const StateOptions& state) {
  return state.replica == 0 && state_place(state).index == 0 && state.tensor.index == 0;
}

/// GroupCollection holds the groups of a rank's programs, and which of them serves which purpose
/// (like Megatron's ProcessGroupCollection). A group that would have only one rank is kNoGroup.
struct GroupCollection {
  /// The groups of the program (Program::groups): each set of ranks once.
  std::vector<ProgramGroup> list;
  /// The group of all ranks.
  GroupId world = kNoGroup;
  /// The groups around this rank's state: the ranks that share one copy of it (shard), the ranks
  /// that hold the same part of it, and the neighbors in the shard group that keep secondary
  /// shards.
  GroupId shard = kNoGroup;
  GroupId replica = kNoGroup;
  GroupId secondary = kNoGroup;
  /// The group of ranks that share each layer, and the group of neighbors among them that use the
  /// same parts of some tensors.
  GroupId tensor = kNoGroup;
  GroupId tensor_copies = kNoGroup;
  /// The group of ranks that divide the tokens of each sequence.
  GroupId context = kNoGroup;
  /// The group of ranks that together hold one copy of the whole model's state.
  GroupId model = kNoGroup;
  /// The group of the first and the last stage, where both hold copies of one matrix.
  GroupId first_and_last_stage = kNoGroup;
  /// The links from this stage to others and from others to it, by (sending, receiving) stage.
  std::map<std::pair<int, int>, GroupId> links;

  /// Returns the group over which collectives of layers run along an axis; kNoGroup where ranks
  /// along it do not share layers.
  GroupId layer_group(MeshAxis axis) const {
    if (kTokenAxes.contains(axis)) return context;
    return kLayerAxes.contains(axis) ? tensor : kNoGroup;
  }
};
GroupCollection make_group_collection(const StateOptions& state);

/// Returns the group of the ranks that a unit is sharded over (shard_place()).
inline GroupId shard_group(const GroupCollection& groups, const Unit& /*unit*/) {
  return groups.shard;
}

/// Lists the groups of all ranks, each once, in the order in which communicators are opened: a
/// rank's GroupIds count only the groups that it is a member of.
std::vector<RankGroup> groups_of_all_ranks(const StateOptions& state);

/// Computes which units are sharded over ranks: none at stage 0, all at stages 1 and 2, and all
/// except small units at stage 3.
inline Sharding shard_units(const Partition& partition, const StateOptions& state) {
  if (state.zero_stage == 0) return Sharding(partition);
  return {partition, [&](const Unit& unit) { return shard_place(state, unit); },
          state.zero_stage < 3};
}

/// UnitStatePiece is a range of a buffer that holds elements [begin, end) of one kind of state of a
/// unit.
struct UnitStatePiece {
  /// The tensor whose scales the piece holds, if the tensor straddles blocks; else -1. Such a piece
  /// holds all scales of the tensor, and [begin, end) counts the elements of the whole tensor
  /// instead of the unit.
  TensorId straddling_tensor = -1;
  /// The state that the piece holds: kParam (the weights that the optimizer updates), the index of
  /// an optimizer state, or kWorking: a copy of the parameters in the dtype that layers compute
  /// with, which is made from the weights and never saved.
  int32_t state = kParam;
  UnitId unit = -1;
  int64_t begin = 0;
  int64_t end = 0;
  /// The part of the piece that this rank writes into checkpoints.
  UnitRange saved;
  BufferRange range;
  /// The number of elements that share one value of the state.
  int64_t block = 1;
  /// The copy of the saved part, for a checkpoint that is written while training continues. It is
  /// empty if no copy is wanted, or if `range` lies on disk: copies of state on disk are at
  /// Buffer::shadow_offset.
  BufferRange snapshot;

  /// Special values of `state`; other values are indices of optimizer states.
  static constexpr int32_t kParam = -1;
  static constexpr int32_t kWorking = -2;
};

}  // namespace ftrun
