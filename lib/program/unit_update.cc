#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "program/buckets.h"
#include "program/unit_store.h"

// The end of a step: norm, updates, and the copies between tiers that they need.

namespace ftrun {

int64_t UnitStore::norm_slots() const {
  int64_t runs = 0;
  for (const StateSpec& spec : specs_) runs += static_cast<int64_t>(spec.norm_ranges.size());
  return runs * options_.shard.count * options_.tensor.count;
}

void UnitStore::norm(BufferId norm) {
  Instr sum;
  sum.kind = InstrKind::kGradientNorm;
  const ShardPlace shard = options_.shard;
  const ShardPlace tensor = options_.tensor;
  int64_t first_slot = 0;
  for (const Unit& u : partition_.units) {
    const ShardRange own = shard_range(u, shard.index, shard.count);
    for (const NormRange& run : spec(u.id).norm_ranges) {
      const int64_t slot = first_slot + shard.index * tensor.count + tensor.index;
      first_slot += int64_t{shard.count} * tensor.count;
      const ShardRange part{std::max(own.begin, run.part.begin), std::min(own.end, run.part.end)};
      const bool counts = spec(u.id).counted && tensor.index % run.copies == 0;
      if (part.size() <= 0 || !counts) continue;
      sum.reads.push_back(range(home(gradients_, u.id), part.begin, part.end));
      sum.writes.push_back({norm, slot * dtype_bytes(DType::kF64), dtype_bytes(DType::kF64)});
    }
  }
  emit(std::move(sum));
  if (groups_.model == kNoGroup) return;
  const Range all = program_.whole(norm);
  emit(collective(InstrKind::kAllReduce, groups_.model, all, all, -1));
}

void UnitStore::update(int64_t bucket_elements) {
  // What needs no copies goes first, beside those that the first two intervals wait for: between
  // intervals it would stand where the next one's copies begin.
  Updates in_place;
  Updates staged;
  for (const Unit& u : partition_.units) {
    if (!spec(u.id).held) continue;
    Updates& updates = stages_update(u.id) ? staged : in_place;
    plan_updates(u.id, updates.list);
    if (spec(u.id).cuts_optimizer && !spec(u.id).cuts_parameters)
      updates.gathers.push_back({updates.list.size(), gather_updated(u.id)});
  }
  join_gathers({&in_place, &staged}, bucket_elements);
  for (size_t k = 0; k < std::min<size_t>(staged.list.size(), 2); ++k)
    emit_all(staged.list[k].before);
  for (size_t k = 0; k < in_place.list.size(); ++k) {
    emit_gathers(in_place, k);
    emit_all(in_place.list[k].updates);
  }
  emit_gathers(in_place, in_place.list.size());
  // Double buffering: what interval k+1 reads comes while interval k is updated, and before what k
  // wrote goes.
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

/// A bucket stands where its last gather stood.
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

/// Those that stand behind the first `done` updates, each once.
void UnitStore::emit_gathers(Updates& updates, size_t done) {
  for (; updates.emitted < updates.gathers.size(); ++updates.emitted) {
    Updates::Gather& next = updates.gathers[updates.emitted];
    if (next.behind > done) return;
    emit(std::move(next.instr));
  }
}

/// Whether an update takes copies of what lies in another tier than where it runs.
bool UnitStore::stages_update(UnitId id) const {
  return spec(id).optimizer != Tier::kDevice || tier_of(held(parameters_, id)) != Tier::kDevice;
}

void UnitStore::plan_updates(UnitId id, std::vector<Update>& updates) {
  for (const ShardRange& interval :
       update_intervals(cut_.own(id), spec(id).optimizer, options_.update_elements)) {
    interval_ = static_cast<int>(updates.size());
    updates.push_back(plan_update(id, interval.begin, interval.end));
  }
}

/// Two buffers of a name take turns, so that one update's copies come and go beside the next one's
/// work, and no more is staged than that.
Range UnitStore::staged(const std::string& name, Tier tier, DType dtype, int64_t elements) {
  const std::string full = cat(name, ".", tier_name(tier), ".", interval_ % 2);
  const int64_t bytes = elements * dtype_bytes(dtype);
  auto found = staging_.find(full);
  if (found == staging_.end())
    found =
        staging_.emplace(full, temporary(full, tier, Category::kStaging, dtype, 0).buffer).first;
  Buffer& buffer = program_.buffers[static_cast<size_t>(found->second)];
  buffer.bytes = std::max(buffer.bytes, bytes);
  return {found->second, 0, bytes};
}

/// The range itself, or a copy of it on the tier where the unit is updated.
Range UnitStore::at_update_tier(const Range& at, const std::string& name, bool written, UnitId id,
                                Update& plan) {
  const Tier here = spec(id).optimizer == Tier::kDevice ? Tier::kDevice : Tier::kHost;
  if (tier_of(at) == here) return at;
  const Range copied =
      staged(name, here, program_.at(at.buffer).dtype, element_count(program_, at));
  plan.before.push_back(copy(at, copied, id));
  plan.before.back().if_finite = true;
  if (written) plan.after.push_back(copy(copied, at, id));
  return copied;
}

/// Brings what the optimizer has written to where layers read it. Their own copy is made in the
/// same pass over memory where it lies on the same tier or has another dtype (then it is the last
/// of `written`, and true is returned); to another tier it travels.
bool UnitStore::hand_on(std::vector<Range>& written, const Range& parameters, UnitId id,
                        Update& plan) {
  const Tier here = tier_of(written[0]);
  const Tier there = tier_of(parameters);
  const bool makes_copy = here == there || spec(id).compute != spec(id).master;
  const int64_t elements = element_count(program_, parameters);
  if (makes_copy)
    written.push_back(here == there ? parameters
                                    : staged("new_parameters", here, spec(id).compute, elements));
  if (here == there) return makes_copy;
  Range from = makes_copy ? written.back() : written[0];
  // No link joins the device and the disk.
  if (here == Tier::kDevice && there == Tier::kNvme) {
    const Range between = staged("new_parameters", Tier::kHost, spec(id).compute, elements);
    plan.after.push_back(copy(from, between, id));
    from = between;
  }
  plan.after.push_back(copy(from, parameters, id));
  return makes_copy;
}

UnitStore::Update UnitStore::plan_update(UnitId id, int64_t begin, int64_t end) {
  Update plan;
  const bool master = spec(id).has_master;
  const Range parameters = range(home(parameters_, id), begin, end);
  const Range gradient =
      at_update_tier(range(home(gradients_, id), begin, end), "gradient_copy", false, id, plan);
  std::vector<Range> written{at_update_tier(
      master ? range(home(masters_, id), begin, end) : parameters, "weights_copy", true, id, plan)};
  for (size_t s = 0; s < moments_.size(); ++s)
    written.push_back(at_update_tier(range(home(moments_[s], id), begin, end),
                                     cat("moment_copy.", s), true, id, plan));
  const bool writes_copy = master && hand_on(written, parameters, id, plan);
  for (Instr& instr : plan.after) instr.if_finite = true;

  const auto part = [&](const Range& all, const DecayRange& run) {
    const int64_t size = dtype_bytes(program_.at(all.buffer).dtype);
    return Range{all.buffer, all.offset + (run.begin - begin) * size, (run.end - run.begin) * size};
  };
  const auto decays = options_.decays ? options_.decays : [](const TensorInfo&) { return true; };
  for (const DecayRange& run : decay_ranges(unit(id), model_, decays, begin, end)) {
    Instr update;
    update.kind = InstrKind::kUpdate;
    update.unit = id;
    update.if_finite = true;
    update.detail = UpdateRange{run.decay, writes_copy, index_.at(id) + run.begin};
    update.reads = {part(gradient, run)};
    for (const Range& all : written) update.writes.push_back(part(all, run));
    // Weights and states are read and written: the passes must see both.
    const auto states = static_cast<std::ptrdiff_t>(1 + moments_.size());
    update.reads.insert(update.reads.end(), update.writes.begin(), update.writes.begin() + states);
    plan.updates.push_back(std::move(update));
  }
  return plan;
}

}  // namespace ftrun
