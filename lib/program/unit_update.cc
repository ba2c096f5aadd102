#include "program/unit_update.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/buckets.h"
#include "program/buffer_names.h"

// The end of a step: norm, updates, and the copies between tiers that they need.

namespace ftrun {
namespace {

int64_t gradient_norm_range_count(const UnitPlacement& placement) {
  int64_t ranges = 0;
  for (const Unit& unit : placement.partition().units)
    ranges += static_cast<int64_t>(placement.spec(unit.id).gradient_norm_ranges.size());
  return ranges;
}

/// Returns the number of ranks that have their own slot for every norm range; 1 (all ranks share
/// slots) if that would be more slots than StateOptions::max_gradient_norm_slots.
int64_t ranks_with_slots(const StateOptions& options, const UnitPlacement& placement) {
  const int64_t ranks = int64_t{state_place(options).count} * options.tensor.count;
  return gradient_norm_range_count(placement) * ranks <= options.max_gradient_norm_slots ? ranks
                                                                                         : 1;
}

/// UnitUpdate holds the updates of one interval of a unit, with the copies between tiers that they
/// need.
struct UnitUpdate {
  UnitId unit = -1;
  /// The number, 0 or 1, of the staging buffers that the update uses. Consecutive updates use
  /// different staging buffers.
  int staging_slot = 0;
  std::vector<Instr> instrs_before;
  std::vector<Instr> updates;
  std::vector<Instr> instrs_after;
};

/// UpdateQueue holds updates in order, and the gathers of updated parameters. A gather runs after
/// the first `after_updates` updates of the queue.
struct UpdateQueue {
  struct Gather {
    size_t after_updates = 0;
    Instr instr;
  };
  std::vector<UnitUpdate> units;
  std::vector<Gather> gathers;
  size_t emitted = 0;
};

/// Joins gathers into buckets; a bucket takes the position of its last gather.
void join_gathers(const Program& program, std::initializer_list<UpdateQueue*> all,
                  int64_t bucket_elements) {
  BucketFiller filler(program, bucket_elements);
  std::vector<std::pair<UpdateQueue*, size_t>> positions;
  for (UpdateQueue* queue : all)
    for (UpdateQueue::Gather& gather : std::exchange(queue->gathers, {})) {
      filler.add(positions.size(), std::move(gather.instr));
      positions.emplace_back(queue, gather.after_updates);
    }
  for (Bucket& bucket : filler.finish()) {
    const auto& [queue, after_updates] = positions[bucket.last_position];
    queue->gathers.push_back({after_updates, std::move(bucket.collective)});
  }
}

void emit_instrs(std::vector<Instr>& instrs, Program& program) {
  for (Instr& instr : instrs) program.instrs.push_back(std::move(instr));
}

/// Emits the gathers that follow the first `done` updates, each once.
void emit_gathers(UpdateQueue& queue, size_t done, Program& program) {
  for (; queue.emitted < queue.gathers.size(); ++queue.emitted) {
    UpdateQueue::Gather& next = queue.gathers[queue.emitted];
    if (next.after_updates > done) return;
    program.instrs.push_back(std::move(next.instr));
  }
}

/// Emits in-place updates while the copies of the first two staged intervals run. Between staged
/// intervals they would delay the next interval's copies.
void emit_updates(UpdateQueue& in_place, UpdateQueue& staged, Program& program) {
  for (size_t k = 0; k < std::min<size_t>(staged.units.size(), 2); ++k)
    emit_instrs(staged.units[k].instrs_before, program);
  for (size_t k = 0; k < in_place.units.size(); ++k) {
    emit_gathers(in_place, k, program);
    emit_instrs(in_place.units[k].updates, program);
  }
  emit_gathers(in_place, in_place.units.size(), program);
  // Double buffering: interval k+1 is read while interval k is updated, and before k's results are
  // written back.
  for (size_t k = 0; k < staged.units.size(); ++k) {
    emit_gathers(staged, k, program);
    if (k > 0 && k + 1 < staged.units.size())
      emit_instrs(staged.units[k + 1].instrs_before, program);
    emit_instrs(staged.units[k].updates, program);
    emit_instrs(staged.units[k].instrs_after, program);
  }
  emit_gathers(staged, staged.units.size(), program);
}

/// StagedOperands holds the operands of the updates of an interval, on the tier where the updates
/// run. `states` has no value for states that the unit does not have.
struct StagedOperands {
  BufferRange gradient;
  BufferRange weights;
  std::vector<std::optional<BufferRange>> states;
};

/// UpdateStaging copies the operands of updates to the tier where the updates run, and copies the
/// results back.
class UpdateStaging {
 public:
  UpdateStaging(Program& program, const UnitPlacement& placement)
      : program_(program), placement_(placement) {}

  /// Returns whether an update needs copies because some of its operands are stored in another tier
  /// than the one in which it runs.
  bool is_staged(UnitId id) const {
    return placement_.spec(id).tiers.optimizer != Tier::kDevice ||
           tier_of(placement_.parameters(id, placement_.shard(id))) != Tier::kDevice;
  }

  StagedOperands stage_operands(const UnitRange& interval, bool is_written, UnitUpdate& plan) {
    const UnitId id = plan.unit;
    const StateSpec& state = placement_.spec(id);
    StagedOperands operands;
    operands.gradient = stage_at_update_tier(placement_.gradient(id, interval), "gradient_copy",
                                             false, interval, plan);
    operands.weights = stage_at_update_tier(placement_.weights(id, interval), "weights_copy",
                                            is_written, interval, plan);
    operands.states.resize(state.formats.states.size());
    for (size_t s = 0; s < state.formats.states.size(); ++s)
      if (state.formats.states[s])
        operands.states[s] = stage_at_update_tier(
            placement_.state(s, id, interval), cat("state_copy.", s), is_written, interval, plan);
    return operands;
  }

  /// Plans how updated weights reach the parameters that layers read. If the parameters are on the
  /// same tier, or have another dtype, the update itself writes them: their range is appended to
  /// `written_ranges`, and the result is true. If they are in another tier, instructions of `plan`
  /// copy them there afterwards.
  bool write_parameters(std::vector<BufferRange>& written_ranges, const BufferRange& parameters,
                        UnitUpdate& plan) {
    const StateSpec& state = placement_.spec(plan.unit);
    const Tier update_tier = tier_of(written_ranges[0]);
    const Tier parameter_tier = tier_of(parameters);
    const bool makes_copy =
        update_tier == parameter_tier || state.formats.compute != state.formats.master;
    const int64_t elements = element_count(program_, parameters);
    const auto stage = [&](Tier tier) {
      return staging_range("new_parameters", tier, state.formats.compute, elements, plan);
    };
    if (makes_copy)
      written_ranges.push_back(update_tier == parameter_tier ? parameters : stage(update_tier));
    if (update_tier == parameter_tier) return makes_copy;
    BufferRange from = makes_copy ? written_ranges.back() : written_ranges[0];
    const auto move = [&](const BufferRange& to) {
      plan.instrs_after.push_back(make_copy(program_, from, to, plan.unit));
      from = to;
    };
    // The device and the disk have no direct link, so data between them moves through the host.
    if (update_tier == Tier::kDevice && parameter_tier == Tier::kDisk) move(stage(Tier::kHost));
    move(parameters);
    return makes_copy;
  }

 private:
  Tier tier_of(const BufferRange& range) const { return program_.at(range.buffer).tier; }

  /// Returns a staging buffer. Each name has two buffers that updates use alternately, so the
  /// copies of one update overlap the work of the next one, and no more memory is used than for two
  /// updates.
  BufferRange staging_range(const std::string& name, Tier tier, const StorageFormat& format,
                            int64_t elements, const UnitUpdate& plan) {
    const std::string full = cat(name, ".", tier_name(tier), ".", plan.staging_slot);
    const int64_t bytes = format.bytes(elements);
    auto found = buffers_.find(full);
    if (found == buffers_.end()) {
      const BufferRange none = add_temporary(program_, full, tier, Category::kStaging, format, 0);
      found = buffers_.emplace(full, none.buffer).first;
    }
    Buffer& buffer = program_.buffers[static_cast<size_t>(found->second)];
    buffer.bytes = std::max(buffer.bytes, bytes);
    return {found->second, 0, bytes};
  }

  /// Returns the range `at` itself if it lies on the tier where the unit is updated, otherwise a
  /// copy of it on that tier.
  BufferRange stage_at_update_tier(const BufferRange& at, const std::string& name, bool is_written,
                                   const UnitRange& interval, UnitUpdate& plan) {
    const bool on_device = placement_.spec(plan.unit).tiers.optimizer == Tier::kDevice;
    const Tier update_tier = on_device ? Tier::kDevice : Tier::kHost;
    const Buffer& buffer = program_.at(at.buffer);
    if (buffer.tier == update_tier) return at;
    const BufferRange copied =
        staging_range(name, update_tier, buffer.format, interval.size(), plan);
    plan.instrs_before.push_back(make_copy(program_, at, copied, plan.unit));
    plan.instrs_before.back().if_finite = true;
    if (is_written) plan.instrs_after.push_back(make_copy(program_, copied, at, plan.unit));
    return copied;
  }

  Program& program_;
  const UnitPlacement& placement_;
  /// Staging buffers by name, tier and slot.
  std::map<std::string, BufferId> buffers_;
};

/// UpdateBuilder adds the updates of all units to the program.
class UpdateBuilder {
 public:
  UpdateBuilder(Program& program, const ModelDescription& model, const StateOptions& options,
                const UnitPlacement& placement)
      : program_(program),
        model_(model),
        options_(options),
        placement_(placement),
        scales_(placement.straddling()),
        staging_(program, placement),
        flat_layout_(make_flat_layout(placement.partition(), FlatOrder::kForward)) {}

  void add_updates(int64_t bucket_elements) {
    compute_straddling_scales();
    UpdateQueue in_place, staged;
    for (const Unit& unit : placement_.partition().units) {
      const StateSpec& state = placement_.spec(unit.id);
      if (!state.used_by_stage || !state.trainable) continue;
      UpdateQueue& queue = staging_.is_staged(unit.id) ? staged : in_place;
      plan_updates(unit, queue.units);
      if (state.sharded.optimizer && !state.sharded.parameters)
        queue.gathers.push_back({queue.units.size(), make_parameter_gather(unit.id)});
    }
    join_gathers(program_, {&in_place, &staged}, bucket_elements);
    emit_updates(in_place, staged, program_);
    copy_new_scales();
  }

 private:
  Instr& emit(Instr instr) {
    program_.instrs.push_back(std::move(instr));
    return program_.instrs.back();
  }

  std::vector<UnitRange> intervals_of(UnitId id) const {
    return list_update_intervals(placement_.sharding().own_range(id),
                                 placement_.spec(id).tiers.optimizer, options_.update_elements);
  }

  /// Splits an interval of a unit into ranges that each have a single update kind.
  std::vector<UpdateKindRange> ranges_of(const Unit& unit, const UnitRange& interval) const {
    const auto kind_of = [&](const TensorSlice& slice) {
      return update_kind_of(model_, options_, slice);
    };
    return update_kind_ranges(unit, kind_of, interval.begin, interval.end);
  }

  /// Returns the sub-range that holds elements `elements` of the unit. `interval` is the range that
  /// holds elements `whole`.
  BufferRange subrange_of(const BufferRange& interval, const UnitRange& elements,
                          const UnitRange& whole) const {
    const Buffer& buffer = program_.at(interval.buffer);
    return {interval.buffer, interval.offset + buffer.format.bytes(elements.begin - whole.begin),
            buffer.format.bytes(elements.size())};
  }

  Instr make_parameter_gather(UnitId id) const {
    const StateSpec& state = placement_.spec(id);
    Instr gather = make_collective(
        InstrKind::kAllGather, {state.shard_group, state.formats.compute.dtype},
        placement_.parameters(id, placement_.shard(id)),
        placement_.parameters(id, {0, placement_.sharding().padded_elements(id)}), id);
    gather.if_finite = true;
    return gather;
  }

  void plan_updates(const Unit& unit, std::vector<UnitUpdate>& updates) {
    for (const UnitRange& interval : intervals_of(unit.id)) {
      updates.push_back({.unit = unit.id, .staging_slot = static_cast<int>(updates.size() % 2)});
      plan_update(unit, interval, updates.back());
    }
  }

  void plan_update(const Unit& unit, const UnitRange& interval, UnitUpdate& plan) {
    const BufferRange parameters = placement_.parameters(unit.id, interval);
    const StagedOperands operands = staging_.stage_operands(interval, true, plan);
    std::vector<BufferRange> weights{operands.weights};
    const bool writes_working_copy =
        placement_.spec(unit.id).has_master && staging_.write_parameters(weights, parameters, plan);
    for (Instr& instr : plan.instrs_after) instr.if_finite = true;

    // The update does not change the padding around a tensor that straddles blocks, so the padding
    // is copied.
    int64_t updated_end = interval.begin;
    const auto copy_padding = [&](int64_t until) {
      const UnitRange padding{updated_end, until};
      if (!writes_working_copy || padding.size() <= 0) return;
      plan.updates.push_back(make_copy(program_, subrange_of(weights.front(), padding, interval),
                                       subrange_of(weights.back(), padding, interval), unit.id));
      plan.updates.back().if_finite = true;
    };
    for (const UpdateKindRange& part : ranges_of(unit, interval)) {
      copy_padding(part.begin);
      updated_end = part.end;
      Instr update = make_update(unit, part, operands, interval);
      update.update().writes_working_copy = writes_working_copy;
      if (writes_working_copy)
        update.writes.push_back(subrange_of(weights.back(), {part.begin, part.end}, interval));
      plan.updates.push_back(std::move(update));
    }
    copy_padding(interval.end);
  }

  /// Makes the update of a part of an interval, without the copy of its weights.
  Instr make_update(const Unit& unit, const UpdateKindRange& part, const StagedOperands& operands,
                    const UnitRange& interval) const {
    const UnitRange elements{part.begin, part.end};
    Instr update;
    update.kind = InstrKind::kUpdate;
    update.unit = unit.id;
    update.if_finite = true;
    update.detail = UpdateDetail{.decay = part.kind.decay,
                                 .first_element = flat_layout_.at(unit.id) + part.begin};
    update.reads = {subrange_of(operands.gradient, elements, interval)};
    update.writes = {subrange_of(operands.weights, elements, interval)};
    for (size_t s = 0; s < operands.states.size(); ++s) {
      const OptimizerStateSpec& spec = options_.optimizer_states[s];
      if (spec.is_8bit != part.kind.has_8bit_states ||
          (part.kind.straddling_tensor >= 0 && spec.block > 1))
        continue;
      require(operands.states[s].has_value(), "the partition was made for an optimizer's states");
      update.writes.push_back(subrange_of(*operands.states[s], elements, interval));
    }
    // Weights and states are read and written, so both lists contain them.
    update.reads.insert(update.reads.end(), update.writes.begin(), update.writes.end());
    add_scales(part, update);
    return update;
  }

  // The functions below handle the scales of tensors that straddle blocks. Each rank finds the
  // largest new value among its elements of a block. The ranks then take the maximum over all ranks
  // and encode their elements with it.

  /// Adds the scales that a part reads, if its tensor straddles blocks.
  void add_scales(const UpdateKindRange& part, Instr& instr) const {
    if (part.kind.straddling_tensor < 0 || scales_.states == 0) return;
    const StraddlingTensor& tensor = scales_.find_tensor(part.kind.straddling_tensor);
    const TensorSlice slice = slices_in(placement_.unit(tensor.unit), part.begin, part.end).front();
    instr.update().blocks = block_map(model_.tensor(tensor.tensor), slice, options_.tensor.index);
    for (const auto* buffers : {&scales_.buffers, &new_scales_})
      for (size_t s = 0; s < scales_.states; ++s)
        instr.reads.push_back(scales_.range(tensor, s, buffers->at(tensor.tier)));
  }

  void compute_straddling_scales() {
    if (scales_.tensors.empty()) return;
    for (const auto& [tier, old] : scales_.buffers) {
      const BufferRange all =
          add_temporary(program_, cat(buffer_names::kNewScales, ".", tier_name(tier)), tier,
                        Category::kBuckets, {DType::kF32}, scales_.elements(tier),
                        placement_.groups().world != kNoGroup && tier == Tier::kDevice);
      new_scales_[tier] = all.buffer;
      Instr clear;
      clear.kind = InstrKind::kClear;
      clear.if_finite = true;
      clear.writes = {all};
      emit(std::move(clear));
    }
    UpdateQueue in_place, staged;
    std::set<GroupId> shard_groups;
    for (const Unit& unit : placement_.partition().units) {
      const bool straddles =
          std::any_of(scales_.tensors.begin(), scales_.tensors.end(),
                      [&](const StraddlingTensor& tensor) { return tensor.unit == unit.id; });
      if (!straddles) continue;
      plan_scales(unit, staging_.is_staged(unit.id) ? staged.units : in_place.units);
      const StateSpec& state = placement_.spec(unit.id);
      if (state.sharded.optimizer) shard_groups.insert(state.shard_group);
    }
    emit_updates(in_place, staged, program_);
    for (const auto& [tier, buffer] : new_scales_)
      reduce_scales(program_.full_range(buffer), shard_groups);
  }

  void plan_scales(const Unit& unit, std::vector<UnitUpdate>& scales) {
    for (const UnitRange& interval : intervals_of(unit.id)) {
      std::vector<UpdateKindRange> parts = ranges_of(unit, interval);
      std::erase_if(parts,
                    [](const UpdateKindRange& part) { return part.kind.straddling_tensor < 0; });
      if (parts.empty()) continue;
      scales.push_back({.unit = unit.id, .staging_slot = static_cast<int>(scales.size() % 2)});
      UnitUpdate& plan = scales.back();
      const StagedOperands operands = staging_.stage_operands(interval, false, plan);
      for (const UpdateKindRange& part : parts)
        plan.updates.push_back(make_scale_computation(unit, part, operands, interval));
    }
  }

  Instr make_scale_computation(const Unit& unit, const UpdateKindRange& part,
                               const StagedOperands& operands, const UnitRange& interval) const {
    const UnitRange elements{part.begin, part.end};
    Instr scales;
    scales.kind = InstrKind::kComputeScales;
    scales.unit = unit.id;
    scales.if_finite = true;
    scales.detail = UpdateDetail{.first_element = flat_layout_.at(unit.id) + part.begin};
    scales.reads = {subrange_of(operands.gradient, elements, interval),
                    subrange_of(operands.weights, elements, interval)};
    for (size_t s = 0; s < operands.states.size(); ++s)
      if (options_.optimizer_states[s].is_8bit && options_.optimizer_states[s].block == 1)
        scales.reads.push_back(subrange_of(*operands.states[s], elements, interval));
    add_scales(part, scales);
    scales.writes.assign(scales.reads.end() - static_cast<std::ptrdiff_t>(scales_.states),
                         scales.reads.end());
    return scales;
  }

  /// Replaces each scale by its maximum over the tensor-parallel ranks and over the groups in
  /// `shard_groups`. Scales on the host are copied to the device and back, because ranks
  /// communicate there.
  void reduce_scales(const BufferRange& scales, const std::set<GroupId>& shard_groups) {
    std::vector<GroupId> groups(shard_groups.begin(), shard_groups.end());
    const GroupId tensor = placement_.groups().tensor;
    if (tensor != kNoGroup) groups.insert(groups.begin(), tensor);
    if (groups.empty()) return;
    BufferRange on_device = scales;
    if (program_.at(scales.buffer).tier == Tier::kHost) {
      on_device =
          add_temporary(program_, cat(buffer_names::kNewScales, ".exchanged"), Tier::kDevice,
                        Category::kBuckets, {DType::kF32}, element_count(program_, scales), true);
      emit(make_copy(program_, scales, on_device)).if_finite = true;
    }
    for (const GroupId group : groups) {
      Instr largest =
          make_collective(InstrKind::kAllReduce, {group, DType::kF32}, on_device, on_device);
      largest.communication().is_max = true;
      largest.if_finite = true;
      emit(std::move(largest));
    }
    if (on_device != scales) emit(make_copy(program_, on_device, scales)).if_finite = true;
  }

  /// Copies the new scales to the old ones, for the next step.
  void copy_new_scales() {
    for (const auto& [tier, buffer] : new_scales_)
      emit(make_copy(program_, program_.full_range(buffer),
                     program_.full_range(scales_.buffers.at(tier))))
          .if_finite = true;
  }

  Program& program_;
  const ModelDescription& model_;
  const StateOptions& options_;
  const UnitPlacement& placement_;
  const StraddlingScales& scales_;
  /// The buffers of the scales as they are after the step, by tier.
  std::map<Tier, BufferId> new_scales_;
  UpdateStaging staging_;
  /// The index of each unit's first element among all parameters that this tensor-parallel rank
  /// uses (UpdateDetail::first_element).
  const FlatLayout flat_layout_;
};

}  // namespace

int64_t gradient_norm_slots(const StateOptions& options, const UnitPlacement& placement) {
  return std::max<int64_t>(
      1, gradient_norm_range_count(placement) * ranks_with_slots(options, placement));
}

void add_gradient_norm(Program& program, const StateOptions& options,
                       const UnitPlacement& placement, BufferId norm) {
  Instr sum;
  sum.kind = InstrKind::kGradientNorm;
  const GroupPlace tensor = options.tensor;
  const auto ranks = static_cast<int32_t>(ranks_with_slots(options, placement));
  const GradientNormSlots slots{
      ranks, ranks == 1 ? 0 : state_place(options).index * tensor.count + tensor.index};
  int64_t first_slot = 0;
  for (const Unit& unit : placement.partition().units) {
    const StateSpec& state = placement.spec(unit.id);
    const UnitRange own = shard_range(unit, state.shard_place.index, state.shard_place.count);
    for (const GradientNormRange& range : state.gradient_norm_ranges) {
      const int64_t slot = first_slot + slots.index;
      first_slot += slots.ranks;
      const UnitRange part{std::max(own.begin, range.elements.begin),
                           std::min(own.end, range.elements.end)};
      const bool counts = state.is_first_stage && tensor.index % range.copies == 0;
      if (part.size() <= 0 || !counts) continue;
      sum.reads.push_back(placement.gradient(unit.id, part));
      sum.writes.push_back({norm, slot * dtype_bytes(DType::kF64), dtype_bytes(DType::kF64)});
    }
  }
  sum.detail = slots;
  program.instrs.push_back(std::move(sum));
  const GroupId model = placement.groups().model;
  if (model == kNoGroup) return;
  const BufferRange all = program.full_range(norm);
  program.instrs.push_back(make_collective(InstrKind::kAllReduce, {model, DType::kF64}, all, all));
}

void add_updates(Program& program, const ModelDescription& model, const StateOptions& options,
                 const UnitPlacement& placement, int64_t bucket_elements) {
  UpdateBuilder(program, model, options, placement).add_updates(bucket_elements);
}

}  // namespace ftrun
