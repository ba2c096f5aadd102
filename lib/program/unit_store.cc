#include "program/unit_store.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "base/error.h"
#include "partition/layout.h"
#include "program/step_builder.h"

namespace ftrun {
namespace {

constexpr std::array<std::pair<Persistent, const char*>, 3> kParameterBuffers{{
    {Persistent::kParameters, buffer_names::kParameters},
    {Persistent::kPackedParameters, buffer_names::kPackedParameters},
    {Persistent::kFp32Parameters, buffer_names::kFp32Parameters},
}};

/// Returns the buffer that holds parameters stored in `format` while layers compute in `compute`:
/// packed ones, those of the dtype that is computed in, or fp32 ones.
Persistent parameter_buffer(const StorageFormat& format, DType compute) {
  if (format.packed) return Persistent::kPackedParameters;
  return format.dtype == compute ? Persistent::kParameters : Persistent::kFp32Parameters;
}

/// Returns part `index` of `count` of a range, in whole blocks.
ShardRange split(const ShardRange& range, int index, int count) {
  const int64_t blocks = (range.size() + kUnitBlock - 1) / kUnitBlock;
  const int64_t stride = (blocks + count - 1) / count * kUnitBlock;
  return {std::min(range.begin + index * stride, range.end),
          std::min(range.begin + (index + 1) * stride, range.end)};
}

}  // namespace

UnitStore::UnitStore(Program& program, const ModelDescription& model, const Partition& partition,
                     const StateOptions& options, int32_t micro_batches)
    : program_(program),
      model_(model),
      partition_(partition),
      options_(options),
      groups_(state_groups(options)),
      specs_(state_specs(model, partition, options, groups_, micro_batches)),
      cut_(cut_states(partition, options)),
      index_(flat_layout(partition, FlatOrder::kForward)) {
  program_.groups = groups_.list;
  program_.stage = {options.pipeline.stages(), options.pipeline_stage};
  place_parameters();
  if (micro_batches > 0) place_training_state();
  list_pieces(micro_batches > 0);
  if (micro_batches > 0 && options_.snapshots) place_snapshots();
}

/// Adds a buffer; one that is not persistent has the number of its first unit in its name.
BufferId UnitStore::add_buffer(const HomeOptions& options, Tier tier, int64_t elements,
                               UnitId first) {
  std::string name = options.name;
  if (tier != Tier::kDevice) name += cat(".", tier_name(tier));
  if (!options.which) name += cat(".", first);
  const BufferId buffer =
      program_.add({.name = std::move(name),
                    .tier = tier,
                    .category = options.category,
                    .bytes = options.format.bytes(elements),
                    .persistent = options.which,
                    .peer_visible = options.peer_visible && tier == Tier::kDevice,
                    .dtype = options.format.dtype,
                    .packed = options.format.packed,
                    .block = options.format.block});
  if (options.which) program_.given.push_back(program_.whole(buffer));
  return buffer;
}

/// Units that lie one after another, by the buffers that they lie in: in one where it is
/// persistent, else in several, each of which has memory only while something of it is there.
std::vector<std::vector<UnitId>> UnitStore::by_buffer(const HomeOptions& options,
                                                      const FlatLayout& layout,
                                                      const std::vector<int64_t>& elements) const {
  const int64_t enough =
      options.which ? std::numeric_limits<int64_t>::max() : options_.gradient_buffer_bytes;
  std::vector<std::vector<UnitId>> buffers;
  int64_t wanted = 0;  // bytes that the last buffer still lacks
  for (const UnitId id : layout.order) {
    const int64_t own = elements[static_cast<size_t>(id)];
    if (own == 0) continue;
    if (wanted <= 0) {
      buffers.emplace_back();
      wanted = enough;
    }
    buffers.back().push_back(id);
    wanted -= options.format.bytes(own);
  }
  return buffers;
}

std::vector<UnitStore::Home> UnitStore::place(
    const HomeOptions& options, const std::function<TierPart(const StateSpec&)>& part_of) {
  std::vector<TierPart> parts;
  for (const StateSpec& spec : specs_) parts.push_back(part_of(spec));
  std::vector<Home> homes(parts.size());
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    std::vector<int64_t> elements(parts.size(), 0);
    for (size_t u = 0; u < parts.size(); ++u) {
      if (parts[u].tier != tier || !parts[u].wanted || !specs_[u].held) continue;
      const auto id = static_cast<UnitId>(u);
      elements[u] = parts[u].cut ? cut_.held(id) : cut_.whole(id);
    }
    const FlatLayout layout = flat_layout(elements, options.order);
    for (const std::vector<UnitId>& units : by_buffer(options, layout, elements)) {
      const int64_t begin = layout.at(units.front());
      const int64_t end = layout.at(units.back()) + elements[static_cast<size_t>(units.back())];
      const BufferId buffer = add_buffer(options, tier, end - begin, units.front());
      for (const UnitId id : units)
        homes[static_cast<size_t>(id)] = {buffer, layout.at(id) - begin,
                                          parts[static_cast<size_t>(id)].cut ? cut_.begin(id) : 0,
                                          options.format};
    }
  }
  return homes;
}

void UnitStore::place_parameters() {
  const bool cuts = std::any_of(specs_.begin(), specs_.end(), [](const StateSpec& spec) {
    return spec.cuts_optimizer || spec.cuts_parameters;
  });
  parameters_.resize(specs_.size());
  for (const auto& [which, name] : kParameterBuffers) {
    const auto is_in_it = [&, buffer = which](const StateSpec& spec) {
      return parameter_buffer(spec.compute, model_.dtypes.compute) == buffer;
    };
    const auto first = std::find_if(specs_.begin(), specs_.end(), is_in_it);
    if (first == specs_.end()) continue;
    const std::vector<Home> homes =
        place({.which = which,
               .name = name,
               .category = Category::kParameters,
               .format = first->compute,
               .peer_visible = cuts},
              [&](const StateSpec& spec) {
                return TierPart{
                    .tier = spec.parameters, .wanted = is_in_it(spec), .cut = spec.cuts_parameters};
              });
    for (size_t u = 0; u < homes.size(); ++u)
      if (homes[u].buffer >= 0) parameters_[u] = homes[u];
  }
}

void UnitStore::place_training_state() {
  gradients_ =
      place({.which = std::nullopt,
             .name = buffer_names::kGradients,
             .category = Category::kGradients,
             .format = specs_.front().gradient,
             .order = FlatOrder::kBackward,
             .peer_visible = groups_.all != kNoGroup},
            [](const StateSpec& spec) {
              return TierPart{
                  .tier = spec.gradients, .wanted = spec.trainable, .cut = spec.cuts_gradients};
            });
  const auto optimizer = [](const StateSpec& spec) {
    return TierPart{.tier = spec.optimizer, .wanted = spec.trainable, .cut = spec.cuts_optimizer};
  };
  masters_ = place({.which = Persistent::kMaster,
                    .name = buffer_names::kMaster,
                    .category = Category::kOptimizer,
                    .format = specs_.front().master},
                   [&](const StateSpec& spec) {
                     TierPart part = optimizer(spec);
                     part.wanted = spec.has_master;
                     return part;
                   });
  for (size_t s = 0; s < options_.optimizer_states.size(); ++s) {
    const KeptState& kept = options_.optimizer_states[s];
    moments_.push_back(place({.which = moments_buffer(static_cast<int32_t>(s)),
                              .name = optimizer_buffer_name(static_cast<int32_t>(s)),
                              .category = Category::kOptimizer,
                              .format = {.dtype = kept.dtype, .block = kept.block}},
                             [&](const StateSpec& spec) {
                               TierPart part = optimizer(spec);
                               part.wanted = part.wanted && spec.states[s].has_value();
                               // Scales are few, and do not fill whole sectors of a disk.
                               if (kept.block > 1 && part.tier == Tier::kNvme)
                                 part.tier = Tier::kHost;
                               return part;
                             }));
  }
  place_straddling_scales();
}

size_t UnitStore::coded_states() const {
  return static_cast<size_t>(
      std::count_if(options_.optimizer_states.begin(), options_.optimizer_states.end(),
                    [](const KeptState& kept) { return kept.coded && kept.block > 1; }));
}

int64_t UnitStore::straddling_blocks(Tier tier) const {
  int64_t blocks = 0;
  for (const StraddlingTensor& tensor : straddling_)
    if (tensor.tier == tier) blocks += tensor.blocks;
  return blocks;
}

void UnitStore::place_straddling_scales() {
  if (coded_states() == 0) return;
  straddling_ = straddling_tensors(model_, partition_, options_, specs_);
  for (const Tier tier : {Tier::kDevice, Tier::kHost})
    if (const int64_t blocks = straddling_blocks(tier); blocks > 0)
      old_scales_[tier] = add_buffer({.which = Persistent::kStraddlingScales,
                                      .name = buffer_names::kStraddlingScales,
                                      .category = Category::kOptimizer,
                                      .format = {.dtype = DType::kF32}},
                                     tier, blocks * static_cast<int64_t>(coded_states()), -1);
}

Range UnitStore::scales_of(const StraddlingTensor& tensor, size_t state, BufferId buffer) const {
  const int64_t size = dtype_bytes(DType::kF32);
  const int64_t first = static_cast<int64_t>(state) * straddling_blocks(tensor.tier) + tensor.first;
  return {buffer, first * size, tensor.blocks * size};
}

Range UnitStore::range(const Home& home, int64_t begin, int64_t end) const {
  return {home.buffer, home.format.bytes(home.offset + begin - home.first),
          home.format.bytes(end - begin)};
}

/// Returns where this rank's shard of the unit lies in `homes` (the whole unit where it is not
/// cut), with the padding that reaches past the unit's end. The home itself may hold the whole of a
/// unit that is cut.
Range UnitStore::held(const std::vector<Home>& homes, UnitId id) const {
  return range(home(homes, id), cut_.begin(id), cut_.begin(id) + cut_.held(id));
}

/// Says whether checkpoints hold the unit; frozen ones are in the model folder.
bool UnitStore::is_saved(UnitId id) const {
  return spec(id).counted && spec(id).trainable;
}

ShardRange UnitStore::saved_part(UnitId id) const {
  if (!is_saved(id)) return {};
  const ShardPlace place = spec(id).place;
  const ShardRange part =
      cut_.cut(id) ? cut_.own(id) : shard_range(unit(id), place.index, place.count);
  return split(part, options_.replica, options_.replicas);
}

void UnitStore::list_pieces(bool trains) {
  for (const Unit& u : partition_.units) {
    const ShardRange own = cut_.own(u.id);
    const StateSpec& state = spec(u.id);
    if (!state.held) continue;
    const ShardRange there = state.cuts_parameters ? own : ShardRange{0, u.padded};
    const bool master = trains && state.has_master;
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
    for (size_t s = 0; state.trainable && s < moments_.size(); ++s) {
      if (!state.states[s]) continue;
      pieces_.push_back({.state = static_cast<int32_t>(s),
                         .unit = u.id,
                         .begin = own.begin,
                         .end = own.end,
                         .saved = saved_part(u.id),
                         .range = range(home(moments_[s], u.id), own.begin, own.end),
                         .block = state.states[s]->block});
    }
  }
  list_straddling_pieces();
}

/// Lists the pieces of scales of straddling tensors: all ranks have all of them, one rank saves
/// them.
void UnitStore::list_straddling_pieces() {
  const bool saves = is_first_of_stage(options_);
  const size_t states = options_.optimizer_states.size(), coded = coded_states();
  for (const StraddlingTensor& tensor : straddling_)
    for (size_t s = 0; s < coded; ++s) {
      const int64_t elements = model_.tensor(tensor.tensor).numel();
      pieces_.push_back(
          {.straddling = tensor.tensor,
           .state = static_cast<int32_t>(states - coded + s),
           .unit = tensor.unit,
           .begin = 0,
           .end = elements,
           .saved = saves && is_saved(tensor.unit) ? ShardRange{0, elements} : ShardRange{},
           .range = scales_of(tensor, s, old_scales_.at(tensor.tier)),
           .block = kTensorBlock});
    }
}

/// Returns the most elements that one of the ranks that save a unit between them saves. Their
/// snapshots are equally long, else ranks of one class would have different programs.
int64_t UnitStore::most_saved(UnitId id) const {
  if (!is_saved(id)) return 0;
  return split(shard_range(unit(id), 0, spec(id).place.count), 0, options_.replicas).size();
}

/// Places snapshots: saved state in memory gets its place in a buffer of the host, saved state on
/// disk a second place there.
void UnitStore::place_snapshots() {
  const auto is_saved = [](const StatePiece& piece) { return piece.state != StatePiece::kWorking; };
  std::set<BufferId> on_disk;
  int64_t in_memory = 0;
  for (StatePiece& piece : pieces_) {
    if (!is_saved(piece) || most_saved(piece.unit) == 0) continue;
    const Buffer& buffer = program_.at(piece.range.buffer);
    if (piece.straddling >= 0) {
      piece.snapshot = {-1, in_memory, piece.saved.size() > 0 ? piece.range.bytes : 0};
      in_memory += piece.range.bytes;
      continue;
    }
    if (buffer.tier == Tier::kNvme) {
      on_disk.insert(piece.range.buffer);
      continue;
    }
    piece.snapshot = {-1, in_memory, buffer.bytes_of(piece.saved.size())};
    in_memory += buffer.bytes_of(most_saved(piece.unit));  // whole blocks of the unit
  }
  const auto add = [&](Tier tier, int64_t bytes) {
    return program_.add(
        {.name = cat(buffer_names::kSnapshot, tier == Tier::kHost ? "" : cat(".", tier_name(tier))),
         .tier = tier,
         .category = Category::kSnapshot,
         .bytes = bytes,
         .persistent = Persistent::kSnapshot});
  };
  if (in_memory > 0) {
    const BufferId host = add(Tier::kHost, in_memory);
    for (StatePiece& piece : pieces_)
      if (piece.snapshot.bytes > 0) piece.snapshot.buffer = host;
  }
  int64_t shadows = 0;
  for (const BufferId buffer : on_disk) {
    program_.buffers[static_cast<size_t>(buffer)].shadow_offset = shadows;
    shadows += program_.at(buffer).bytes;  // whole disk sectors, as units are
  }
  if (shadows > 0) add(Tier::kNvme, shadows);
}

ParameterHolders UnitStore::parameter_holders() const {
  ParameterHolders holders{.stages = options_.pipeline.stages()};
  for (const Unit& u : partition_.units) {
    const StateSpec& state = spec(u.id);
    const bool master = !masters_.empty() && state.has_master;
    holders.units.push_back(
        {state.first_stage, master ? state.cuts_optimizer : state.cuts_parameters});
  }
  return holders;
}

Range UnitStore::temporary(const std::string& name, Tier tier, Category category,
                           const StorageFormat& format, int64_t elements, bool peer_visible) {
  return program_.whole(program_.add({.name = name,
                                      .tier = tier,
                                      .category = category,
                                      .bytes = format.bytes(elements),
                                      .peer_visible = peer_visible,
                                      .dtype = format.dtype,
                                      .packed = format.packed,
                                      .block = format.block}));
}

Instr& UnitStore::emit(Instr instr) {
  program_.instrs.push_back(std::move(instr));
  return program_.instrs.back();
}

Instr UnitStore::copy(const Range& from, const Range& to, UnitId unit) const {
  Instr instr = make_copy(program_, from, to);
  instr.unit = unit;
  return instr;
}

Instr UnitStore::collective(InstrKind kind, GroupId group, const Range& in, const Range& out,
                            UnitId unit) const {
  Instr instr = make_collective(kind, {group, program_.at(in.buffer).dtype}, in, out);
  instr.unit = unit;
  return instr;
}

// Parameters.

Range UnitStore::parameters(const ParamPlace& place, int64_t bytes, int32_t micro_batch) {
  const StorageFormat& format = spec(place.unit).compute;
  if (!spec(place.unit).gathered) {
    const Home& at = home(parameters_, place.unit);
    return {at.buffer, format.bytes(at.offset + place.position), bytes};
  }
  const auto [open, is_new] = open_parameters_.try_emplace(place.unit, parameter_uses_.size());
  if (is_new) {
    const std::string name = cat("gathered.", place.unit, ".", parameter_uses_.size());
    const Range whole =
        temporary(name, Tier::kDevice, Category::kBuckets, format, cut_.whole(place.unit));
    parameter_uses_.push_back({place.unit, micro_batch, whole.buffer});
  }
  return {parameter_uses_[open->second].buffer, format.bytes(place.position), bytes};
}

void UnitStore::release(const std::set<UnitId>& kept) {
  std::erase_if(open_parameters_, [&](const auto& open) { return !kept.contains(open.first); });
}

std::vector<Instr> UnitStore::gather(const ParameterUse& use, size_t number) {
  const UnitId id = use.unit;
  const std::string suffix = cat(".", id, ".", number);
  const StorageFormat& format = spec(id).compute;
  const Range whole = program_.whole(use.buffer);
  std::vector<Instr> chain;
  const auto move = [&](const Range& from, const Range& to) {
    chain.push_back(copy(from, to, id));
    return to;
  };
  Range part = held(parameters_, id);
  if (tier_of(part) == Tier::kNvme)
    part = move(part, temporary("from_disk" + suffix, Tier::kHost, Category::kStaging, format,
                                cut_.held(id)));
  if (!spec(id).cuts_parameters) {
    move(part, whole);
  } else {
    if (tier_of(part) == Tier::kHost)
      part = move(part, temporary("from_host" + suffix, Tier::kDevice, Category::kStaging, format,
                                  cut_.held(id), true));
    chain.push_back(collective(InstrKind::kAllGather, spec(id).shard, part, whole, id));
  }
  for (Instr& instr : chain) instr.micro_batch = use.micro_batch;
  return chain;
}

// Gradients.

/// Returns the chunk of the first layer that reads a unit: backward reaches it last.
int32_t UnitStore::chunk_of(UnitId id) const {
  const PipelineLayout& pipeline = options_.pipeline;
  for (const int layer : unit(id).layers)
    if (pipeline.holds(options_.pipeline_stage, layer))
      return pipeline.chunk_of(pipeline.part_with(layer));
  bug("a gradient is made by a layer of the stage");
}

Range UnitStore::gradient(const ParamPlace& place, int64_t bytes, int32_t micro_batch) {
  const StateSpec& state = spec(place.unit);
  const int32_t of = state.reduces_micro_batches ? micro_batch : -1;
  const auto [open, is_new] = open_gradients_.try_emplace({place.unit, of}, gradient_uses_.size());
  if (is_new) {
    const Range whole = state.reduces_micro_batches
                            ? temporary(cat("gradient.", place.unit, ".", micro_batch),
                                        Tier::kDevice, Category::kBuckets, state.gradient,
                                        cut_.whole(place.unit), groups_.all != kNoGroup)
                            : range(home(gradients_, place.unit), 0, cut_.whole(place.unit));
    gradient_uses_.push_back({place.unit, of, chunk_of(place.unit), whole});
  }
  const Range& whole = gradient_uses_[open->second].whole;
  return {whole.buffer, whole.offset + state.gradient.bytes(place.position), bytes};
}

bool UnitStore::begins_as_zero(UnitId id, TensorId tensor) const {
  const int first = unit(id).layers.front(), last = static_cast<int>(model_.layers.size()) - 1;
  if (first == last || !options_.pipeline.holds(options_.pipeline_stage, last)) return false;
  const auto reads = [&](int layer, TensorId wanted) {
    const std::vector<GraphParam>& params = model_.layers[static_cast<size_t>(layer)].params;
    return std::any_of(params.begin(), params.end(), [&](const GraphParam& param) {
      return std::find(param.tensors.begin(), param.tensors.end(), wanted) != param.tensors.end();
    });
  };
  // The tied matrix may be in another unit: what counts is that a list of the first layer finds a
  // gradient that the last layer's has begun.
  const std::vector<GraphParam>& params = model_.layers[static_cast<size_t>(first)].params;
  const bool is_tied = std::any_of(params.begin(), params.end(), [&](const GraphParam& param) {
    return std::any_of(param.tensors.begin(), param.tensors.end(), [&](TensorId shared) {
      return model_.tensor(shared).trainable && reads(last, shared);
    });
  });
  return is_tied && reads(first, tensor) && !reads(last, tensor);
}

/// Ranges of a unit's whole gradient that are cleared because the first list leaves them unwritten:
/// padding, and tensors that begin as zero.
std::vector<Range> UnitStore::gaps(const Range& whole, UnitId id) const {
  const StorageFormat& format = spec(id).gradient;
  std::vector<Range> found;
  int64_t at = 0;
  const auto gap = [&](int64_t end) {
    if (at < end)
      found.push_back({whole.buffer, whole.offset + format.bytes(at), format.bytes(end - at)});
  };
  for (const Slice& slice : unit(id).slices) {
    if (begins_as_zero(id, slice.tensor)) continue;
    gap(slice.position_in_unit);
    at = slice.position_in_unit + slice.extent;
  }
  gap(cut_.whole(id));
  return found;
}

/// Clears the padding: elements between tensors are reduced, summed and updated like them.
std::vector<Instr> UnitStore::clear_padding(const GradientUse& use) const {
  Instr clear;
  clear.kind = InstrKind::kClear;
  clear.unit = use.unit;
  clear.writes = gaps(use.whole, use.unit);
  return clear.writes.empty() ? std::vector<Instr>() : std::vector<Instr>{std::move(clear)};
}

std::vector<Instr> UnitStore::sum_shares(const GradientUse& use) const {
  std::vector<Instr> sums;
  const StorageFormat& format = spec(use.unit).gradient;
  for (const GradientShares& shares : spec(use.unit).shares) {
    std::vector<Range> ranges;
    for (const ShardRange& part : shares.parts)
      add_range(ranges, {use.whole.buffer, use.whole.offset + format.bytes(part.begin),
                         format.bytes(part.size())});
    Instr sum = collective(InstrKind::kAllReduce, shares.group, ranges[0], ranges[0], use.unit);
    sum.reads = sum.writes = std::move(ranges);
    sums.push_back(std::move(sum));
  }
  return sums;
}

/// Returns the gradient in the dtype in which it is sent.
Range UnitStore::to_wire(const GradientUse& use, Reduction& reduction) {
  const StateSpec& state = spec(use.unit);
  if (state.communication == state.gradient) return use.whole;
  const Range wire =
      temporary(cat("wire.", use.unit, ".", std::max(0, use.micro_batch)), Tier::kDevice,
                Category::kBuckets, state.communication, element_count(program_, use.whole), true);
  reduction.before.push_back(copy(use.whole, wire, use.unit));
  return wire;
}

/// Brings a reduced part to where the update reads it: the first is copied, later ones are added.
/// Where the compute lane would do it and other ranks make shares of the gradient, the lane of the
/// reduction does it instead, so that computation is not held up.
void UnitStore::collect(const Range& part, const Range& to, UnitId id, bool first,
                        std::vector<Instr>& into) const {
  if (part == to) return;
  const StateSpec& state = spec(id);
  Instr instr = copy(part, to, id);
  if (!first) instr.kind = InstrKind::kAccumulate;
  if (instr.lane == Lane::kCompute && has_gradient_peers(id))
    instr.lane = lane_of(state.replica == kNoGroup ? state.shard : state.replica);
  into.push_back(std::move(instr));
}

/// Reduces the range in place over each of the groups in turn. Callers list the shard group before
/// the replica group, the order in which units that are cut are reduced, so that sums have the same
/// bits at every ZeRO stage.
void UnitStore::reduce_over(const std::vector<GroupId>& groups, const Range& range, UnitId id,
                            Reduction& reduction) const {
  for (const GroupId group : groups) {
    if (group == kNoGroup) continue;
    Instr sum = collective(InstrKind::kAllReduce, group, range, range, id);
    if (reduction.collective)
      reduction.after.push_back(std::move(sum));
    else
      reduction.collective = std::move(sum);
  }
}

Reduction UnitStore::reduction(const GradientUse& use, bool first) {
  const UnitId id = use.unit;
  const StateSpec& state = spec(id);
  Reduction reduction{.before = sum_shares(use)};
  const Range to = state.reduces_micro_batches ? held(gradients_, id) : use.whole;
  if (!has_gradient_peers(id)) {
    collect(use.whole, to, id, first, reduction.before);
    return reduction;
  }
  const Range wire = to_wire(use, reduction);
  if (!state.cuts_optimizer || !state.reduce_scatter) {
    reduce_over({state.shard, state.replica}, wire, id, reduction);
    collect(wire, to, id, first, reduction.after);
    return reduction;
  }
  const Range own = held(gradients_, id);
  const bool direct = state.reduces_micro_batches && first && tier_of(own) == Tier::kDevice &&
                      state.communication == state.gradient;
  const int64_t bytes = state.communication.bytes(cut_.held(id));
  const Range part =
      direct ? own : Range{wire.buffer, wire.offset + state.place.index * bytes, bytes};
  reduction.collective = collective(InstrKind::kReduceScatter, state.shard, wire, part, id);
  // Every micro-batch does so: what leaves the device must be complete before, and where
  // gradients are kept must not change the order of their sum.
  reduce_over({state.replica}, part, id, reduction);
  collect(part, own, id, first, reduction.after);
  return reduction;
}

}  // namespace ftrun
