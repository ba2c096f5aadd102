#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "program/buckets.h"
#include "program/step_builder.h"
#include "program/unit_store.h"

// The end of a step: norm, updates, and the copies between tiers that they need.

namespace ftrun {

/// Counts the ranks that each have a slot of every run: one if the slots of all would be too many.
int64_t UnitStore::ranks_with_slots() const {
  const int64_t ranks = int64_t{state_place(options_).count} * options_.tensor.count;
  return norm_runs() * ranks <= options_.most_norm_slots ? ranks : 1;
}

int64_t UnitStore::norm_runs() const {
  int64_t runs = 0;
  for (const StateSpec& spec : specs_) runs += static_cast<int64_t>(spec.norm_ranges.size());
  return runs;
}

int64_t UnitStore::norm_slots() const {
  return std::max<int64_t>(1, norm_runs() * ranks_with_slots());
}

void UnitStore::norm(BufferId norm) {
  Instr sum;
  sum.kind = InstrKind::kGradientNorm;
  const ShardPlace tensor = options_.tensor;
  const auto ranks = static_cast<int32_t>(ranks_with_slots());
  const NormSlots slots{ranks,
                        ranks == 1 ? 0 : state_place(options_).index * tensor.count + tensor.index};
  int64_t first_slot = 0;
  for (const Unit& u : partition_.units) {
    const ShardPlace place = spec(u.id).place;
    const ShardRange own = shard_range(u, place.index, place.count);
    for (const NormRange& run : spec(u.id).norm_ranges) {
      const int64_t slot = first_slot + slots.place;
      first_slot += slots.ranks;
      const ShardRange part{std::max(own.begin, run.part.begin), std::min(own.end, run.part.end)};
      const bool counts = spec(u.id).counted && tensor.index % run.copies == 0;
      if (part.size() <= 0 || !counts) continue;
      sum.reads.push_back(range(home(gradients_, u.id), part.begin, part.end));
      sum.writes.push_back({norm, slot * dtype_bytes(DType::kF64), dtype_bytes(DType::kF64)});
    }
  }
  sum.detail = slots;
  emit(std::move(sum));
  if (groups_.model == kNoGroup) return;
  const Range all = program_.whole(norm);
  emit(collective(InstrKind::kAllReduce, groups_.model, all, all, -1));
}

void UnitStore::update(int64_t bucket_elements) {
  measure_straddling();
  // Updates that need no copies go first, beside those that the first two intervals wait for:
  // between intervals they would stand where the next one's copies begin.
  Updates in_place;
  Updates staged;
  for (const Unit& u : partition_.units) {
    if (!spec(u.id).held || !spec(u.id).trainable) continue;
    Updates& updates = stages_update(u.id) ? staged : in_place;
    plan_updates(u.id, updates.list);
    if (spec(u.id).cuts_optimizer && !spec(u.id).cuts_parameters)
      updates.gathers.push_back({updates.list.size(), gather_updated(u.id)});
  }
  join_gathers({&in_place, &staged}, bucket_elements);
  emit_updates(in_place, staged);
  keep_straddling();
}

void UnitStore::emit_updates(Updates& in_place, Updates& staged) {
  for (size_t k = 0; k < std::min<size_t>(staged.list.size(), 2); ++k)
    emit_all(staged.list[k].before);
  for (size_t k = 0; k < in_place.list.size(); ++k) {
    emit_gathers(in_place, k);
    emit_all(in_place.list[k].updates);
  }
  emit_gathers(in_place, in_place.list.size());
  // Double buffering: interval k+1 is read while interval k is updated, and before k's results are
  // written back.
  for (size_t k = 0; k < staged.list.size(); ++k) {
    emit_gathers(staged, k);
    if (k > 0 && k + 1 < staged.list.size()) emit_all(staged.list[k + 1].before);
    emit_all(staged.list[k].updates);
    emit_all(staged.list[k].after);
  }
  emit_gathers(staged, staged.list.size());
}

void UnitStore::emit_all(std::vector<Instr>& instrs) {
  for (Instr& instr : instrs) emit(std::move(instr));
}

Instr UnitStore::gather_updated(UnitId id) const {
  Instr gather = collective(InstrKind::kAllGather, spec(id).shard, held(parameters_, id),
                            range(home(parameters_, id), 0, cut_.whole(id)), id);
  gather.if_finite = true;
  return gather;
}

/// Joins gathers into buckets; a bucket takes the place of its last gather.
void UnitStore::join_gathers(std::initializer_list<Updates*> all, int64_t bucket_elements) const {
  BucketFiller filler(program_, bucket_elements);
  std::vector<std::pair<Updates*, size_t>> places;
  for (Updates* updates : all)
    for (Updates::Gather& gather : std::exchange(updates->gathers, {})) {
      filler.add(places.size(), std::move(gather.instr));
      places.emplace_back(updates, gather.behind);
    }
  for (Bucket& bucket : filler.take()) {
    const auto& [updates, behind] = places[bucket.last];
    updates->gathers.push_back({behind, std::move(bucket.collective)});
  }
}

/// Emits the gathers that stand behind the first `done` updates, each once.
void UnitStore::emit_gathers(Updates& updates, size_t done) {
  for (; updates.emitted < updates.gathers.size(); ++updates.emitted) {
    Updates::Gather& next = updates.gathers[updates.emitted];
    if (next.behind > done) return;
    emit(std::move(next.instr));
  }
}

/// Says whether an update takes copies of what lies in another tier than where it runs.
bool UnitStore::stages_update(UnitId id) const {
  return spec(id).optimizer != Tier::kDevice || tier_of(held(parameters_, id)) != Tier::kDevice;
}

void UnitStore::plan_updates(UnitId id, std::vector<Update>& updates) {
  for (const ShardRange& interval :
       update_intervals(cut_.own(id), spec(id).optimizer, options_.update_elements)) {
    updates.push_back({.unit = id, .turn = static_cast<int>(updates.size() % 2)});
    plan_update(interval, updates.back());
  }
}

/// Returns a staging buffer: two buffers of a name take turns, so that one update's copies overlap
/// the next one's work, and no more is staged than that.
Range UnitStore::staged(const std::string& name, Tier tier, const StorageFormat& format,
                        int64_t elements, const Update& plan) {
  const std::string full = cat(name, ".", tier_name(tier), ".", plan.turn);
  const int64_t bytes = format.bytes(elements);
  auto found = staging_.find(full);
  if (found == staging_.end())
    found =
        staging_.emplace(full, temporary(full, tier, Category::kStaging, format, 0).buffer).first;
  Buffer& buffer = program_.buffers[static_cast<size_t>(found->second)];
  buffer.bytes = std::max(buffer.bytes, bytes);
  return {found->second, 0, bytes};
}

/// Returns an interval of a unit's state itself, or a copy of it on the tier where the unit is
/// updated.
Range UnitStore::at_update_tier(const Home& home, const ShardRange& interval,
                                const std::string& name, bool written, Update& plan) {
  const Range at = range(home, interval.begin, interval.end);
  const Tier here = spec(plan.unit).optimizer == Tier::kDevice ? Tier::kDevice : Tier::kHost;
  if (tier_of(at) == here) return at;
  const Range copied = staged(name, here, home.format, interval.size(), plan);
  plan.before.push_back(copy(at, copied, plan.unit));
  plan.before.back().if_finite = true;
  if (written) plan.after.push_back(copy(copied, at, plan.unit));
  return copied;
}

/// Brings what the optimizer has written to where layers read it. Their own copy is made in the
/// same pass over memory where it lies on the same tier or has another dtype (then it is the last
/// of `written`, and true is returned); to another tier it travels.
bool UnitStore::hand_on(std::vector<Range>& written, const Range& parameters, Update& plan) {
  const StateSpec& state = spec(plan.unit);
  const Tier here = tier_of(written[0]);
  const Tier there = tier_of(parameters);
  const bool makes_copy = here == there || state.compute != state.master;
  const int64_t elements = element_count(program_, parameters);
  if (makes_copy)
    written.push_back(
        here == there ? parameters : staged("new_parameters", here, state.compute, elements, plan));
  if (here == there) return makes_copy;
  Range from = makes_copy ? written.back() : written[0];
  // No link joins the device and the disk.
  if (here == Tier::kDevice && there == Tier::kNvme) {
    const Range between = staged("new_parameters", Tier::kHost, state.compute, elements, plan);
    plan.after.push_back(copy(from, between, plan.unit));
    from = between;
  }
  plan.after.push_back(copy(from, parameters, plan.unit));
  return makes_copy;
}

UnitStore::UpdateOperands UnitStore::bring_operands(const ShardRange& interval, bool written,
                                                    Update& plan) {
  const UnitId id = plan.unit;
  UpdateOperands operands;
  operands.gradient = at_update_tier(home(gradients_, id), interval, "gradient_copy", false, plan);
  operands.weights = at_update_tier(home(spec(id).has_master ? masters_ : parameters_, id),
                                    interval, "weights_copy", written, plan);
  operands.states.resize(moments_.size());
  for (size_t s = 0; s < moments_.size(); ++s)
    if (spec(id).states[s])
      operands.states[s] =
          at_update_tier(home(moments_[s], id), interval, cat("moment_copy.", s), written, plan);
  return operands;
}

std::vector<UpdatePart> UnitStore::parts_of(UnitId id, const ShardRange& interval) const {
  const auto kind_of = [&](const Slice& slice) { return update_kind(model_, options_, slice); };
  return update_parts(unit(id), kind_of, interval.begin, interval.end);
}

/// Returns the part of a range that holds a state of `whole`, for elements `part` of the unit.
Range UnitStore::part_of(const Range& interval, const ShardRange& part,
                         const ShardRange& whole) const {
  const Buffer& buffer = program_.at(interval.buffer);
  return {interval.buffer, interval.offset + buffer.bytes_of(part.begin - whole.begin),
          buffer.bytes_of(part.size())};
}

void UnitStore::plan_update(const ShardRange& interval, Update& plan) {
  const UnitId id = plan.unit;
  const Range parameters = range(home(parameters_, id), interval.begin, interval.end);
  const UpdateOperands operands = bring_operands(interval, true, plan);
  std::vector<Range> weights{operands.weights};
  const bool writes_copy = spec(id).has_master && hand_on(weights, parameters, plan);
  for (Instr& instr : plan.after) instr.if_finite = true;

  // Padding around a tensor that straddles blocks stays as it is, in the copy too.
  int64_t done = interval.begin;
  const auto pass_padding = [&](int64_t until) {
    const ShardRange padding{done, until};
    if (!writes_copy || padding.size() <= 0) return;
    plan.updates.push_back(copy(part_of(weights.front(), padding, interval),
                                part_of(weights.back(), padding, interval), id));
    plan.updates.back().if_finite = true;
  };
  for (const UpdatePart& part : parts_of(id, interval)) {
    const ShardRange elements{part.begin, part.end};
    pass_padding(part.begin);
    done = part.end;
    Instr update;
    update.kind = InstrKind::kUpdate;
    update.unit = id;
    update.if_finite = true;
    update.detail = UpdateRange{part.kind.decay, writes_copy, index_.at(id) + part.begin};
    update.reads = {part_of(operands.gradient, elements, interval)};
    update.writes = {part_of(weights.front(), elements, interval)};
    for (size_t s = 0; s < operands.states.size(); ++s) {
      const KeptState& kept = options_.optimizer_states[s];
      if (kept.coded != part.kind.coded || (part.kind.straddling >= 0 && kept.block > 1)) continue;
      require(operands.states[s].has_value(), "the partition was made for an optimizer's states");
      update.writes.push_back(part_of(*operands.states[s], elements, interval));
    }
    // Weights and states are read and written: the passes must see both.
    update.reads.insert(update.reads.end(), update.writes.begin(), update.writes.end());
    add_scales(part, update);
    if (writes_copy) update.writes.push_back(part_of(weights.back(), elements, interval));
    plan.updates.push_back(std::move(update));
  }
  pass_padding(interval.end);
}

// Scales of tensors that straddle blocks. Each rank finds how large its elements of a block become,
// then ranks find the largest of all, and encode with that.

const StraddlingTensor& UnitStore::straddling(TensorId tensor) const {
  const auto found =
      std::find_if(straddling_.begin(), straddling_.end(),
                   [&](const StraddlingTensor& known) { return known.tensor == tensor; });
  require(found != straddling_.end(), "the tensor straddles blocks");
  return *found;
}

/// Adds the scales that a part reads, if its tensor straddles blocks.
void UnitStore::add_scales(const UpdatePart& part, Instr& instr) const {
  if (part.kind.straddling < 0 || coded_states() == 0) return;
  const StraddlingTensor& tensor = straddling(part.kind.straddling);
  const Slice slice = slices_in(unit(tensor.unit), part.begin, part.end).front();
  instr.update().blocks = block_map(model_.tensor(tensor.tensor), slice, options_.tensor.index);
  for (const auto& scales : {old_scales_, new_scales_})
    for (size_t s = 0; s < coded_states(); ++s)
      instr.reads.push_back(scales_of(tensor, s, scales.at(tensor.tier)));
}

void UnitStore::plan_measures(UnitId id, std::vector<Update>& measures) {
  for (const ShardRange& interval :
       update_intervals(cut_.own(id), spec(id).optimizer, options_.update_elements)) {
    std::vector<UpdatePart> parts = parts_of(id, interval);
    std::erase_if(parts, [](const UpdatePart& part) { return part.kind.straddling < 0; });
    if (parts.empty()) continue;
    measures.push_back({.unit = id, .turn = static_cast<int>(measures.size() % 2)});
    Update& plan = measures.back();
    const UpdateOperands operands = bring_operands(interval, false, plan);
    for (const UpdatePart& part : parts) {
      const ShardRange elements{part.begin, part.end};
      Instr measure;
      measure.kind = InstrKind::kMeasure;
      measure.unit = id;
      measure.if_finite = true;
      measure.detail = UpdateRange{.first_element = index_.at(id) + part.begin};
      measure.reads = {part_of(operands.gradient, elements, interval),
                       part_of(operands.weights, elements, interval)};
      for (size_t s = 0; s < operands.states.size(); ++s)
        if (options_.optimizer_states[s].coded && options_.optimizer_states[s].block == 1)
          measure.reads.push_back(part_of(*operands.states[s], elements, interval));
      add_scales(part, measure);
      measure.writes.assign(measure.reads.end() - static_cast<std::ptrdiff_t>(coded_states()),
                            measure.reads.end());
      plan.updates.push_back(std::move(measure));
    }
  }
}

void UnitStore::measure_straddling() {
  if (straddling_.empty()) return;
  const auto states = static_cast<int64_t>(coded_states());
  for (const auto& [tier, old] : old_scales_) {
    const Range all = temporary(cat(buffer_names::kNewScales, ".", tier_name(tier)), tier,
                                Category::kBuckets, {DType::kF32}, states * straddling_blocks(tier),
                                groups_.all != kNoGroup && tier == Tier::kDevice);
    new_scales_[tier] = all.buffer;
    Instr clear;
    clear.kind = InstrKind::kClear;
    clear.if_finite = true;
    clear.writes = {all};
    emit(std::move(clear));
  }
  Updates in_place, staged;
  std::set<GroupId> cut_over;
  for (const Unit& u : partition_.units) {
    const bool straddles =
        std::any_of(straddling_.begin(), straddling_.end(),
                    [&](const StraddlingTensor& tensor) { return tensor.unit == u.id; });
    if (!straddles) continue;
    plan_measures(u.id, stages_update(u.id) ? staged.list : in_place.list);
    if (spec(u.id).cuts_optimizer) cut_over.insert(spec(u.id).shard);
  }
  emit_updates(in_place, staged);
  for (const auto& [tier, buffer] : new_scales_) exchange_scales(program_.whole(buffer), cut_over);
}

/// Leaves the largest of the scales of tensor ranks, and of the ranks of `cut_over`, in a buffer.
/// What lies on the host goes through the device, where ranks communicate.
void UnitStore::exchange_scales(const Range& scales, const std::set<GroupId>& cut_over) {
  std::vector<GroupId> groups(cut_over.begin(), cut_over.end());
  if (groups_.tensor != kNoGroup) groups.insert(groups.begin(), groups_.tensor);
  if (groups.empty()) return;
  Range on_device = scales;
  if (tier_of(scales) == Tier::kHost) {
    on_device = temporary(cat(buffer_names::kNewScales, ".exchanged"), Tier::kDevice,
                          Category::kBuckets, {DType::kF32}, element_count(program_, scales), true);
    emit(copy(scales, on_device, -1)).if_finite = true;
  }
  for (const GroupId group : groups) {
    Instr largest = collective(InstrKind::kAllReduce, group, on_device, on_device, -1);
    largest.exchange().largest = true;
    largest.if_finite = true;
    emit(std::move(largest));
  }
  if (on_device != scales) emit(copy(on_device, scales, -1)).if_finite = true;
}

/// Copies the new scales to the old ones, for the next step.
void UnitStore::keep_straddling() {
  for (const auto& [tier, buffer] : new_scales_)
    emit(copy(program_.whole(buffer), program_.whole(old_scales_.at(tier)), -1)).if_finite = true;
}

}  // namespace ftrun
