#include "program/unit_store.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "partition/layout.h"
#include "program/step_builder.h"

namespace ftrun {
namespace {

/// Gradients of a micro-batch are made apart and then added to the sum, wherever that lies: where
/// the optimizer is must not change how they are added. With one micro-batch there is no sum, and
/// one rank may keep them where they are made.
bool sums_micro_batches(const StateOptions& options, int32_t micro_batches) {
  return options.stage >= 2 && (options.shard.count > 1 || micro_batches > 1 ||
                                options.optimizer_tier != Tier::kDevice);
}

/// Part `index` of `count` of a range, in whole blocks.
ShardRange split(const ShardRange& range, int index, int count) {
  const int64_t blocks = (range.size() + kUnitBlock - 1) / kUnitBlock;
  const int64_t stride = (blocks + count - 1) / count * kUnitBlock;
  return {std::min(range.begin + index * stride, range.end),
          std::min(range.begin + (index + 1) * stride, range.end)};
}

/// Which parts of the units the gradient norm sums by themselves: slices that follow each other and
/// of which equally many tensor-parallel ranks have copies. Without tensor parallelism that is the
/// unit.
std::vector<NormRun> runs_of(const Partition& partition, const ModelDescription& model) {
  std::vector<NormRun> runs;
  for (const Unit& unit : partition.units) {
    const size_t first = runs.size();
    for (const Slice& slice : unit.slices) {
      const int copies = model.tensor(slice.tensor).copies;
      if (runs.size() > first && runs.back().copies == copies) continue;
      const int64_t begin = runs.size() > first ? slice.position_in_unit : 0;
      if (runs.size() > first) runs.back().part.end = begin;
      runs.push_back({unit.id, {begin, unit.padded}, copies});
    }
    require(runs.size() > first, "a unit holds tensors");
  }
  return runs;
}

}  // namespace

UnitStore::UnitStore(Program& program, const ModelDescription& model, const Partition& partition,
                     const StateOptions& options, int32_t micro_batches)
    : program_(program),
      model_(model),
      partition_(partition),
      options_(options),
      groups_(state_groups(options)),
      compute_(model.dtypes.compute),
      gradient_(model.dtypes.gradients),
      shards_gradients_(sums_micro_batches(options, micro_batches)),
      cut_(cut_states(partition, options)),
      optimizer_tiers_(choose_optimizer_tiers()),
      index_(flat_layout(partition, FlatOrder::kForward)),
      norm_runs_(runs_of(partition, model)) {
  program_.groups = groups_.list;
  place_parameters();
  if (micro_batches > 0) place_training_state();
  list_pieces(micro_batches > 0);
}

/// Stage 3: the unit's parameters come just in time.
bool UnitStore::gathers(UnitId id) const {
  return options_.stage == 3 && !unit(id).small &&
         (options_.shard.count > 1 || options_.parameter_tier != Tier::kDevice);
}

/// The optimizer's weights are not the ones that layers read: another dtype, or another tier.
bool UnitStore::has_master(UnitId id) const {
  const Tier parameters = gathers(id) ? options_.parameter_tier : Tier::kDevice;
  return compute_ != options_.master || parameters != optimizer_tier(id);
}

std::vector<Tier> UnitStore::choose_optimizer_tiers() const {
  int64_t total = 0;
  for (const Unit& u : partition_.units) total += u.small ? 0 : u.padded;
  std::vector<Tier> tiers;
  int64_t moved = 0;
  for (const Unit& u : partition_.units) {
    const bool wanted =
        static_cast<double>(moved) < options_.optimizer_ratio * static_cast<double>(total);
    const bool moves = options_.stage > 0 && !u.small && wanted;
    if (moves) moved += u.padded;
    tiers.push_back(moves ? options_.optimizer_tier : Tier::kDevice);
  }
  return tiers;
}

BufferId UnitStore::add_buffer(Buffer buffer) {
  program_.buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(program_.buffers.size()) - 1;
}

/// One buffer for each tier that holds wanted units, laid out one unit after another.
std::vector<UnitStore::Home> UnitStore::place(const HomeOptions& options,
                                              const std::vector<Tier>& tiers,
                                              const std::vector<char>& wanted) {
  std::vector<Home> homes(partition_.units.size());
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    std::vector<int64_t> elements(partition_.units.size(), 0);
    for (size_t u = 0; u < elements.size(); ++u) {
      if (tiers[u] != tier || wanted[u] == 0) continue;
      const auto id = static_cast<UnitId>(u);
      elements[u] = options.whole ? cut_.whole(id) : cut_.held(id);
    }
    const FlatLayout layout = flat_layout(elements, options.order);
    if (layout.total == 0) continue;
    const std::string name =
        tier == Tier::kDevice ? options.name : cat(options.name, ".", tier_name(tier));
    const BufferId buffer =
        add_buffer({.name = name,
                    .tier = tier,
                    .category = options.category,
                    .bytes = layout.total * dtype_bytes(options.dtype),
                    .persistent = true,
                    .peer_visible = options.peer_visible && tier == Tier::kDevice,
                    .dtype = options.dtype});
    if (options.category != Category::kGradients)
      program_.given.push_back({buffer, 0, program_.at(buffer).bytes});
    for (size_t u = 0; u < elements.size(); ++u)
      if (elements[u] > 0)
        homes[u] = {buffer, layout.offset[u],
                    options.whole ? 0 : cut_.begin(static_cast<UnitId>(u))};
  }
  return homes;
}

void UnitStore::place_parameters() {
  const std::vector<char> all(partition_.units.size(), 1);
  std::vector<Tier> tiers;
  for (const Unit& u : partition_.units)
    tiers.push_back(gathers(u.id) ? options_.parameter_tier : Tier::kDevice);
  parameters_ = place({.name = buffer_names::kParameters,
                       .category = Category::kParameters,
                       .dtype = compute_,
                       .peer_visible = options_.stage > 0 && options_.shard.count > 1,
                       .whole = options_.stage < 3},
                      tiers, all);
}

void UnitStore::place_training_state() {
  const std::vector<char> all(partition_.units.size(), 1);
  std::vector<Tier> gradient_tiers;
  std::vector<char> with_master;
  for (const Unit& u : partition_.units) {
    const bool away = shards_gradients_ && optimizer_tier(u.id) != Tier::kDevice;
    gradient_tiers.push_back(away ? Tier::kHost : Tier::kDevice);
    with_master.push_back(has_master(u.id) ? 1 : 0);
  }
  gradients_ = place({.name = buffer_names::kGradients,
                      .category = Category::kGradients,
                      .dtype = gradient_,
                      .order = FlatOrder::kBackward,
                      .peer_visible = groups_.all != kNoGroup,
                      .whole = !shards_gradients_},
                     gradient_tiers, all);
  if (!shards_gradients_)
    for (const Unit& u : partition_.units)
      for (const Range& gap : gaps(range(home(gradients_, u.id), 0, cut_.whole(u.id)), u.id))
        program_.given.push_back(gap);
  masters_ = place(
      {.name = buffer_names::kMaster, .category = Category::kOptimizer, .dtype = options_.master},
      optimizer_tiers_, with_master);
  for (int32_t s = 0; s < options_.optimizer_states; ++s)
    moments_.push_back(place({.name = optimizer_buffer_name(s),
                              .category = Category::kOptimizer,
                              .dtype = options_.states},
                             optimizer_tiers_, all));
}

Range UnitStore::range(const Home& home, int64_t begin, int64_t end) const {
  const int64_t size = dtype_bytes(program_.at(home.buffer).dtype);
  return {home.buffer, (home.offset + begin - home.first) * size, (end - begin) * size};
}

/// All that this rank holds of the unit, with what reaches behind it.
Range UnitStore::held(const std::vector<Home>& homes, UnitId id) const {
  return range(home(homes, id), cut_.begin(id), cut_.begin(id) + cut_.held(id));
}

ShardRange UnitStore::saved_part(UnitId id) const {
  const ShardRange part = cut_.cut(id)
                              ? cut_.own(id)
                              : shard_range(unit(id), options_.shard.index, options_.shard.count);
  return split(part, options_.replica, options_.replicas);
}

void UnitStore::list_pieces(bool trains) {
  for (const Unit& u : partition_.units) {
    const ShardRange own = cut_.own(u.id);
    const bool whole = options_.stage < 3;
    const ShardRange there = whole ? ShardRange{0, u.padded} : own;
    const bool master = trains && has_master(u.id);
    pieces_.push_back({.state = master ? StatePiece::kWorking : StatePiece::kParam,
                       .unit = u.id,
                       .begin = there.begin,
                       .end = there.end,
                       .saved = master ? ShardRange{} : saved_part(u.id),
                       .range = range(home(parameters_, u.id), there.begin, there.end)});
    if (!trains) continue;
    if (master)
      pieces_.push_back({.state = StatePiece::kParam,
                         .unit = u.id,
                         .begin = own.begin,
                         .end = own.end,
                         .saved = saved_part(u.id),
                         .range = range(home(masters_, u.id), own.begin, own.end)});
    for (size_t s = 0; s < moments_.size(); ++s)
      pieces_.push_back({.state = static_cast<int32_t>(s),
                         .unit = u.id,
                         .begin = own.begin,
                         .end = own.end,
                         .saved = saved_part(u.id),
                         .range = range(home(moments_[s], u.id), own.begin, own.end)});
  }
}

Range UnitStore::temporary(const std::string& name, Tier tier, Category category, DType dtype,
                           int64_t elements, bool peer_visible) {
  const int64_t bytes = elements * dtype_bytes(dtype);
  const BufferId id = add_buffer({.name = name,
                                  .tier = tier,
                                  .category = category,
                                  .bytes = bytes,
                                  .peer_visible = peer_visible,
                                  .dtype = dtype});
  return {id, 0, bytes};
}

Instr& UnitStore::emit(Instr instr) {
  program_.instrs.push_back(std::move(instr));
  return program_.instrs.back();
}

/// A copy runs on the lane of the link it uses.
Instr UnitStore::copy(const Range& from, const Range& to, UnitId unit) const {
  Instr instr;
  instr.kind = InstrKind::kCopy;
  instr.unit = unit;
  instr.reads = {from};
  instr.writes = {to};
  const Tier source = tier_of(from);
  const Tier target = tier_of(to);
  if (source == Tier::kNvme || target == Tier::kNvme)
    instr.lane = Lane::kDisk;
  else if (source != target)
    instr.lane = target == Tier::kHost ? Lane::kToHost : Lane::kToDevice;
  return instr;
}

Instr UnitStore::collective(InstrKind kind, GroupId group, const Range& in, const Range& out,
                            UnitId unit) const {
  Instr instr;
  instr.kind = kind;
  instr.lane = lane_of(group);
  instr.group = group;
  instr.dtype = program_.at(in.buffer).dtype;
  instr.unit = unit;
  instr.reads = {in};
  instr.writes = {out};
  return instr;
}

// Parameters.

void UnitStore::bring(UnitId id, int32_t micro_batch) {
  if (gathers(id) && !gathered_.contains(id)) gather(id, micro_batch);
}

void UnitStore::release(const std::set<UnitId>& kept) {
  std::erase_if(gathered_, [&](const auto& gathered) { return !kept.contains(gathered.first); });
}

void UnitStore::gather(UnitId id, int32_t micro_batch) {
  const std::string suffix = cat(".", id, ".", gathers_++);
  const int64_t held_elements = cut_.held(id);
  std::vector<Instr> chain;
  const auto move = [&](const Range& from, const Range& to) {
    chain.push_back(copy(from, to, id));
    return to;
  };
  Range part = held(parameters_, id);
  if (tier_of(part) == Tier::kNvme)
    part = move(part, temporary("from_disk" + suffix, Tier::kHost, Category::kStaging, compute_,
                                held_elements));
  const Range whole =
      temporary("gathered" + suffix, Tier::kDevice, Category::kBuckets, compute_, cut_.whole(id));
  if (!cut_.cut(id)) {
    move(part, whole);
  } else {
    if (tier_of(part) == Tier::kHost)
      part = move(part, temporary("from_host" + suffix, Tier::kDevice, Category::kStaging, compute_,
                                  held_elements, true));
    chain.push_back(collective(InstrKind::kAllGather, groups_.shard, part, whole, id));
  }
  for (Instr& instr : chain) {
    instr.micro_batch = micro_batch;
    instr.hold = instr.ahead = true;
    emit(std::move(instr));
  }
  gathered_[id] = whole;
}

Range UnitStore::parameters(const ParamPlace& place, int64_t bytes) const {
  const int64_t offset = place.position * dtype_bytes(compute_);
  if (const auto found = gathered_.find(place.unit); found != gathered_.end())
    return {found->second.buffer, offset, bytes};
  require(!gathers(place.unit), "parameters are brought before they are read");
  const Home& at = home(parameters_, place.unit);
  return {at.buffer, (at.offset + place.position) * dtype_bytes(compute_), bytes};
}

// Gradients.

Range UnitStore::gradient(const ParamPlace& place, int64_t bytes, int32_t micro_batch) {
  const int64_t size = dtype_bytes(gradient_);
  if (!shards_gradients_) {
    const Home& at = home(gradients_, place.unit);
    return {at.buffer, (at.offset + place.position) * size, bytes};
  }
  auto found = whole_gradients_.find(place.unit);
  if (found == whole_gradients_.end()) {
    const Range whole =
        temporary(cat("gradient.", place.unit, ".", micro_batch), Tier::kDevice, Category::kBuckets,
                  gradient_, cut_.whole(place.unit), groups_.all != kNoGroup);
    found = whole_gradients_.emplace(place.unit, whole).first;
    clear_padding(place.unit, whole);
  }
  return {found->second.buffer, place.position * size, bytes};
}

/// What the lists leave unwritten of a unit's whole gradient: they write tensors only.
std::vector<Range> UnitStore::gaps(const Range& whole, UnitId id) const {
  const int64_t size = dtype_bytes(gradient_);
  std::vector<Range> found;
  int64_t at = 0;
  const auto gap = [&](int64_t end) {
    if (at < end) found.push_back({whole.buffer, whole.offset + at * size, (end - at) * size});
  };
  for (const Slice& slice : unit(id).slices) {
    gap(slice.position_in_unit);
    at = slice.position_in_unit + slice.extent;
  }
  gap(cut_.whole(id));
  return found;
}

/// What lies between tensors is reduced, summed and updated like them.
void UnitStore::clear_padding(UnitId id, const Range& whole) {
  Instr clear;
  clear.kind = InstrKind::kClear;
  clear.unit = id;
  clear.writes = gaps(whole, id);
  if (!clear.writes.empty()) emit(std::move(clear));
}

void UnitStore::reduce(UnitId id, int32_t micro_batch, bool last) {
  if (shards_gradients_) {
    sum_copies(id, whole_gradients_.at(id));
    return reduce_into_home(id, micro_batch);
  }
  if (!last) return;
  sum_copies(id, range(home(gradients_, id), 0, cut_.whole(id)));
  if (data_ranks(options_) > 1) reduce_whole(id);
}

/// Tensor-parallel ranks that use the same part of a tensor have made a share of its gradient each.
void UnitStore::sum_copies(UnitId id, const Range& whole) {
  std::map<GroupId, std::vector<Range>> shares;
  const int64_t size = dtype_bytes(gradient_);
  for (const Slice& slice : unit(id).slices) {
    const TensorInfo& tensor = model_.tensor(slice.tensor);
    if (tensor.copies == 1 || !tensor.partial_gradient) continue;
    const bool all = tensor.copies == options_.tensor.count;
    add_range(shares[all ? groups_.tensor : groups_.tensor_copies],
              {whole.buffer, whole.offset + slice.position_in_unit * size, slice.extent * size});
  }
  for (auto& [group, ranges] : shares) {
    Instr sum = collective(InstrKind::kAllReduce, group, ranges[0], ranges[0], id);
    sum.reads = sum.writes = std::move(ranges);
    emit(std::move(sum));
  }
}

/// The gradient in the dtype it travels in.
Range UnitStore::to_wire(const Range& gradient, UnitId id, int32_t micro_batch) {
  if (options_.communication == gradient_) return gradient;
  const int64_t elements = element_count(program_, gradient);
  const Range wire = temporary(cat("wire.", id, ".", micro_batch), Tier::kDevice,
                               Category::kBuckets, options_.communication, elements, true);
  emit(copy(gradient, wire, id));
  return wire;
}

/// Brings a reduced part to where the update reads it; the communication lane does it right behind
/// the reduction, without bothering compute.
void UnitStore::collect(const Range& part, const Range& to, UnitId id, bool first, bool follows) {
  if (part == to) return;
  Instr instr = copy(part, to, id);
  if (!first) instr.kind = InstrKind::kAccumulate;
  if (instr.lane == Lane::kCompute && data_ranks(options_) > 1)
    instr.lane = lane_of(groups_.replica == kNoGroup ? groups_.shard : groups_.replica);
  instr.follows = follows;
  emit(std::move(instr));
}

/// Over the shard group first, as where units are cut: sums have the same bits at every stage.
void UnitStore::sum_everywhere(const Range& range, UnitId id) {
  bool follows = false;
  for (const GroupId group : {groups_.shard, groups_.replica}) {
    if (group == kNoGroup) continue;
    emit(collective(InstrKind::kAllReduce, group, range, range, id)).follows = follows;
    follows = true;
  }
}

void UnitStore::reduce_whole(UnitId id) {
  const Home& at = home(gradients_, id);
  const Range all = range(at, 0, cut_.whole(id));
  const Range wire = to_wire(all, id, 0);
  if (!cut_.cut(id) || !options_.reduce_scatter) {
    sum_everywhere(wire, id);
    return collect(wire, all, id, true, true);
  }
  const int64_t bytes = cut_.held(id) * dtype_bytes(program_.at(wire.buffer).dtype);
  const Range part{wire.buffer, wire.offset + options_.shard.index * bytes, bytes};
  emit(collective(InstrKind::kReduceScatter, groups_.shard, wire, part, id));
  if (options_.replicas > 1)
    emit(collective(InstrKind::kAllReduce, groups_.replica, part, part, id)).follows = true;
  collect(part, held(gradients_, id), id, true, true);
}

void UnitStore::reduce_into_home(UnitId id, int32_t micro_batch) {
  const auto found = whole_gradients_.find(id);
  require(found != whole_gradients_.end(), "a unit's gradients are made before they are reduced");
  const Range whole = found->second;
  whole_gradients_.erase(found);
  const bool first = micro_batch == 0;
  const Range to = held(gradients_, id);
  if (!cut_.cut(id)) {
    if (data_ranks(options_) == 1) return collect(whole, to, id, first, false);
    const Range wire = to_wire(whole, id, micro_batch);
    sum_everywhere(wire, id);
    return collect(wire, to, id, first, true);
  }
  const Range wire = to_wire(whole, id, micro_batch);
  const bool direct = first && tier_of(to) == Tier::kDevice && options_.communication == gradient_;
  const int64_t bytes = cut_.held(id) * dtype_bytes(program_.at(wire.buffer).dtype);
  const Range part = direct ? to : Range{wire.buffer, options_.shard.index * bytes, bytes};
  emit(collective(InstrKind::kReduceScatter, groups_.shard, wire, part, id));
  // In every micro-batch: what leaves the device must be complete before, and where gradients are
  // kept must not change the order of their sum.
  if (options_.replicas > 1)
    emit(collective(InstrKind::kAllReduce, groups_.replica, part, part, id)).follows = true;
  collect(part, to, id, first, true);
}

}  // namespace ftrun
