#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "partition/layout.h"
#include "program/unit_store.h"

// The end of a step: norm, updates, and the copies between tiers that they need.

namespace ftrun {

int64_t UnitStore::norm_slots() const {
  return static_cast<int64_t>(norm_runs_.size()) * options_.shard.count * options_.tensor.count;
}

void UnitStore::norm(BufferId norm) {
  Instr sum;
  sum.kind = InstrKind::kGradientNorm;
  const ShardPlace tensor = options_.tensor;
  for (size_t r = 0; r < norm_runs_.size(); ++r) {
    const NormRun& run = norm_runs_[r];
    const ShardRange own =
        shard_range(unit(run.unit), options_.shard.index, options_.shard.count);
    const ShardRange part{std::max(own.begin, run.part.begin), std::min(own.end, run.part.end)};
    if (part.size() <= 0 || tensor.index % run.copies != 0) continue;
    const int64_t place = static_cast<int64_t>(r) * options_.shard.count + options_.shard.index;
    const int64_t slot = place * tensor.count + tensor.index;
    sum.reads.push_back(range(home(gradients_, run.unit), part.begin, part.end));
    sum.writes.push_back({norm, slot * dtype_bytes(DType::kF64), dtype_bytes(DType::kF64)});
  }
  emit(std::move(sum));
  if (groups_.model == kNoGroup) return;
  const Range all{norm, 0, program_.at(norm).bytes};
  emit(collective(InstrKind::kAllReduce, groups_.model, all, all, -1));
}

void UnitStore::update() {
  // What needs no copies goes first, beside those that the first two stretches wait for: between
  // stretches it would stand where the next one's copies begin.
  std::vector<Update> in_place;
  std::vector<Update> staged;
  std::vector<Gather> behind_in_place;
  std::vector<Gather> behind_staged;
  for (const Unit& u : partition_.units) {
    const bool copies = stages_update(u.id);
    std::vector<Update>& updates = copies ? staged : in_place;
    plan_updates(u.id, updates);
    if (cut_.cut(u.id) && options_.stage < 3)
      (copies ? behind_staged : behind_in_place).push_back({updates.size(), u.id});
  }
  for (size_t k = 0; k < std::min<size_t>(staged.size(), 2); ++k) emit_all(staged[k].before);
  for (size_t k = 0; k < in_place.size(); ++k) {
    gather_updated(behind_in_place, k);
    emit_all(in_place[k].updates);
  }
  gather_updated(behind_in_place, in_place.size());
  // Double buffering: what stretch k+1 reads comes while stretch k is updated, and before what k
  // wrote goes.
  for (size_t k = 0; k < staged.size(); ++k) {
    gather_updated(behind_staged, k);
    if (k > 0 && k + 1 < staged.size()) emit_all(staged[k + 1].before);
    emit_all(staged[k].updates);
    emit_all(staged[k].after);
  }
  gather_updated(behind_staged, staged.size());
}

void UnitStore::emit_all(std::vector<Instr>& instrs) {
  for (Instr& instr : instrs) emit(std::move(instr));
}

/// Emits the gathers that stand behind `done` updates, and takes them out.
void UnitStore::gather_updated(std::vector<Gather>& gathers, size_t done) {
  size_t next = 0;
  for (; next < gathers.size() && gathers[next].behind <= done; ++next) {
    const UnitId id = gathers[next].unit;
    Instr gather = collective(InstrKind::kAllGather, groups_.shard, held(parameters_, id),
                              range(home(parameters_, id), 0, cut_.whole(id)), id);
    gather.if_finite = true;
    emit(std::move(gather));
  }
  gathers.erase(gathers.begin(), gathers.begin() + static_cast<std::ptrdiff_t>(next));
}

/// Whether an update takes copies of what lies in another tier than where it runs.
bool UnitStore::stages_update(UnitId id) const {
  return optimizer_tier(id) != Tier::kDevice || tier_of(held(parameters_, id)) != Tier::kDevice;
}

/// What lies on the update's own tier is taken as a whole, the rest in stretches, so that little of
/// it is staged at a time. Stretches begin on blocks, as disks ask for.
void UnitStore::plan_updates(UnitId id, std::vector<Update>& updates) {
  const ShardRange own = cut_.own(id);
  const int64_t most = optimizer_tier(id) == Tier::kDevice ? own.size() : options_.update_elements;
  require(optimizer_tier(id) == Tier::kDevice || most % kUnitBlock == 0, "updates begin on blocks");
  for (int64_t begin = own.begin; begin < own.end; begin += most) {
    stretch_ = static_cast<int>(updates.size());
    updates.push_back(plan_update(id, begin, std::min(begin + most, own.end)));
  }
}

/// Two buffers of a name take turns, so that one update's copies come and go beside the next one's
/// work, and no more is staged than that.
Range UnitStore::staged(const std::string& name, Tier tier, DType dtype, int64_t elements) {
  const std::string full = cat(name, ".", tier_name(tier), ".", stretch_ % 2);
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
  const Tier here = optimizer_tier(id) == Tier::kDevice ? Tier::kDevice : Tier::kHost;
  if (tier_of(at) == here) return at;
  const Range copied =
      staged(name, here, program_.at(at.buffer).dtype, element_count(program_, at));
  plan.before.push_back(copy(at, copied, id));
  plan.before.back().hold = plan.before.back().if_finite = true;
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
  const bool makes_copy = here == there || compute_ != options_.master;
  const int64_t elements = element_count(program_, parameters);
  if (makes_copy)
    written.push_back(here == there ? parameters
                                    : staged("new_parameters", here, compute_, elements));
  if (here == there) return makes_copy;
  Range from = makes_copy ? written.back() : written[0];
  // No link joins the device and the disk.
  if (here == Tier::kDevice && there == Tier::kNvme) {
    const Range between = staged("new_parameters", Tier::kHost, compute_, elements);
    plan.after.push_back(copy(from, between, id));
    from = between;
  }
  plan.after.push_back(copy(from, parameters, id));
  return makes_copy;
}

UnitStore::Update UnitStore::plan_update(UnitId id, int64_t begin, int64_t end) {
  Update plan;
  const bool master = has_master(id);
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
    update.decay = run.decay;
    update.if_finite = true;
    update.writes_copy = writes_copy;
    update.first_element = index_.at(id) + run.begin;
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
