#include "program/gradient_reducer.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {
namespace {

/// Returns whether other ranks compute partial gradients of the unit from other samples or tokens.
bool has_gradient_peers(const StateSpec& state) {
  return state.shard_group != kNoGroup || state.replica_group != kNoGroup;
}

std::vector<Instr> sum_partial_gradients(const StateSpec& state, const GradientUse& use) {
  std::vector<Instr> sums;
  for (const PartialGradients& partial : state.partial_gradients) {
    std::vector<BufferRange> ranges;
    for (const UnitRange& part : partial.parts)
      add_range(ranges,
                {use.range.buffer, use.range.offset + state.formats.gradient.bytes(part.begin),
                 state.formats.gradient.bytes(part.size())});
    Instr sum =
        make_collective(InstrKind::kAllReduce, {partial.group, state.formats.gradient.dtype},
                        ranges[0], ranges[0], use.unit);
    sum.reads = sum.writes = std::move(ranges);
    sums.push_back(std::move(sum));
  }
  return sums;
}

/// Returns the range that holds the gradient in the dtype in which it is sent: the gradient itself,
/// or a temporary buffer to which `reduction.instrs_before` converts it.
BufferRange convert_to_wire_dtype(Program& program, const StateSpec& state, const GradientUse& use,
                                  Reduction& reduction) {
  if (state.formats.communication == state.formats.gradient) return use.range;
  const BufferRange wire = add_temporary(
      program, cat("wire.", use.unit, ".", std::max(0, use.micro_batch)), Tier::kDevice,
      Category::kBuckets, state.formats.communication, element_count(program, use.range), true);
  reduction.instrs_before.push_back(make_copy(program, use.range, wire, use.unit));
  return wire;
}

/// Sums the range in place over each group in turn. Callers list the shard group before the replica
/// group. Sharded units are reduced in the same order, so sums have the same bits at every ZeRO
/// stage.
void all_reduce_over(const std::vector<GroupId>& groups, DType dtype, const BufferRange& range,
                     UnitId id, Reduction& reduction) {
  for (const GroupId group : groups) {
    if (group == kNoGroup) continue;
    Instr sum = make_collective(InstrKind::kAllReduce, {group, dtype}, range, range, id);
    if (reduction.collective)
      reduction.instrs_after.push_back(std::move(sum));
    else
      reduction.collective = std::move(sum);
  }
}

/// Copies a reduced gradient to the gradient that the update reads if it is the first of the step,
/// and adds it otherwise. If other ranks compute partial gradients, this runs on the lane of the
/// reduction instead of the compute lane, so that computation does not wait.
void add_to_gradient(const Program& program, const StateSpec& state, const BufferRange& part,
                     const BufferRange& to, UnitId id, bool is_first, std::vector<Instr>& into) {
  if (part == to) return;
  Instr instr = make_copy(program, part, to, id);
  if (!is_first) instr.kind = InstrKind::kAccumulate;
  if (instr.lane == Lane::kCompute && has_gradient_peers(state))
    instr.lane = lane_of(state.replica_group == kNoGroup ? state.shard_group : state.replica_group);
  into.push_back(std::move(instr));
}

}  // namespace

/// Returns the chunk of the first layer that reads a unit: backward reaches it last.
int32_t GradientReducer::chunk_of(UnitId id) const {
  const PipelineLayout& pipeline = options_.pipeline;
  for (const int layer : placement_.unit(id).layers)
    if (pipeline.stage_has_layer(options_.pipeline_stage, layer))
      return pipeline.chunk_of(pipeline.model_chunk_of_layer(layer));
  bug("a gradient is made by a layer of the stage");
}

BufferRange GradientReducer::assign_gradient_range(const ParamLocation& location, int64_t bytes,
                                                   int32_t micro_batch) {
  const UnitId id = location.unit;
  const StateSpec& state = placement_.spec(id);
  const int32_t micro_batch_of_use = state.reduces_each_micro_batch ? micro_batch : -1;
  const auto [use, is_new] = joinable_uses_.try_emplace({id, micro_batch_of_use}, uses_.size());
  if (is_new) {
    const int64_t elements = placement_.sharding().padded_elements(id);
    const BufferRange whole =
        state.reduces_each_micro_batch
            ? add_temporary(program_, cat("gradient.", id, ".", micro_batch), Tier::kDevice,
                            Category::kBuckets, state.formats.gradient, elements,
                            placement_.groups().world != kNoGroup)
            : placement_.gradient(id, {0, elements});
    uses_.push_back({id, micro_batch_of_use, chunk_of(id), whole});
  }
  const BufferRange& whole = uses_[use->second].range;
  return {whole.buffer, whole.offset + state.formats.gradient.bytes(location.position), bytes};
}

bool GradientReducer::must_be_zeroed_first(UnitId id, TensorId tensor) const {
  const int first = placement_.unit(id).layers.front(),
            last = static_cast<int>(model_.layers.size()) - 1;
  if (first == last || !options_.pipeline.stage_has_layer(options_.pipeline_stage, last))
    return false;
  const auto reads = [&](int layer, TensorId wanted) {
    const std::vector<GraphParam>& params = model_.layers[static_cast<size_t>(layer)].params;
    return std::any_of(params.begin(), params.end(), [&](const GraphParam& param) {
      return std::find(param.tensors.begin(), param.tensors.end(), wanted) != param.tensors.end();
    });
  };
  // The tied matrix may be in another unit. In any case the first layer's backward list adds to all
  // its gradients, because the last layer's list has written the gradient of the tied matrix
  // before.
  const std::vector<GraphParam>& params = model_.layers[static_cast<size_t>(first)].params;
  const bool is_tied = std::any_of(params.begin(), params.end(), [&](const GraphParam& param) {
    return std::any_of(param.tensors.begin(), param.tensors.end(), [&](TensorId shared) {
      return model_.tensor(shared).trainable && reads(last, shared);
    });
  });
  return is_tied && reads(first, tensor) && !reads(last, tensor);
}

/// Clears the padding between tensors, because padding is reduced, summed and updated like the
/// tensors, and clears the tensors whose gradient must begin as zero.
std::vector<Instr> GradientReducer::clear_unwritten(const GradientUse& use) const {
  const StorageFormat& format = placement_.spec(use.unit).formats.gradient;
  Instr clear;
  clear.kind = InstrKind::kClear;
  clear.unit = use.unit;
  int64_t at = 0;
  const auto clear_up_to = [&](int64_t end) {
    if (at < end)
      clear.writes.push_back(
          {use.range.buffer, use.range.offset + format.bytes(at), format.bytes(end - at)});
  };
  for (const TensorSlice& slice : placement_.unit(use.unit).slices) {
    if (must_be_zeroed_first(use.unit, slice.tensor)) continue;
    clear_up_to(slice.position_in_unit);
    at = slice.position_in_unit + slice.extent;
  }
  clear_up_to(placement_.sharding().padded_elements(use.unit));
  return clear.writes.empty() ? std::vector<Instr>() : std::vector<Instr>{std::move(clear)};
}

Reduction GradientReducer::plan_reduction(const GradientUse& use, bool is_first) {
  const UnitId id = use.unit;
  const StateSpec& state = placement_.spec(id);
  Reduction reduction{.instrs_before = sum_partial_gradients(state, use)};
  const BufferRange own_shard = placement_.gradient(id, placement_.shard(id));
  const BufferRange to = state.reduces_each_micro_batch ? own_shard : use.range;
  if (!has_gradient_peers(state)) {
    add_to_gradient(program_, state, use.range, to, id, is_first, reduction.instrs_before);
    return reduction;
  }
  const DType sent_dtype = state.formats.communication.dtype;
  const BufferRange wire = convert_to_wire_dtype(program_, state, use, reduction);
  if (!state.sharded.optimizer || !state.reduce_scatter) {
    all_reduce_over({state.shard_group, state.replica_group}, sent_dtype, wire, id, reduction);
    add_to_gradient(program_, state, wire, to, id, is_first, reduction.instrs_after);
    return reduction;
  }
  const bool direct = state.reduces_each_micro_batch && is_first &&
                      program_.at(own_shard.buffer).tier == Tier::kDevice &&
                      state.formats.communication == state.formats.gradient;
  const int64_t bytes = state.formats.communication.bytes(placement_.shard(id).size());
  const BufferRange shard =
      direct ? own_shard
             : BufferRange{wire.buffer, wire.offset + state.shard_place.index * bytes, bytes};
  reduction.collective =
      make_collective(InstrKind::kReduceScatter, {state.shard_group, sent_dtype}, wire, shard, id);
  // Replicas are summed after every micro-batch: a gradient that leaves the device must be
  // complete, and the tier of gradients must not change the order of sums.
  all_reduce_over({state.replica_group}, sent_dtype, shard, id, reduction);
  add_to_gradient(program_, state, shard, own_shard, id, is_first, reduction.instrs_after);
  return reduction;
}

}  // namespace ftrun
