#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/buffer_names.h"
#include "program/passes.h"

namespace ftrun {
namespace {

/// GatherSpan is the time during which a unit's gathered parameters are in memory: from the gather
/// to their last reader.
struct GatherSpan {
  ParameterUse use;
  /// The position of the use in the list of uses, and the number of elements of the whole unit.
  size_t number = 0;
  int64_t elements = 0;
  /// The first and the last plain instruction that uses the parameters.
  size_t first = 0;
  size_t last = 0;
};

std::vector<GatherSpan> gather_spans_of(const Program& program,
                                        const std::vector<ParameterUse>& uses) {
  const std::vector<BufferUse> buffer_uses = find_buffer_uses(program);
  std::vector<GatherSpan> spans;
  for (const ParameterUse& use : uses) {
    const BufferUse& buffer_use = buffer_uses[static_cast<size_t>(use.buffer)];
    require(buffer_use.first != BufferUse::kNone, "gathered parameters have a reader");
    const int64_t elements = element_count(program, program.full_range(use.buffer));
    spans.push_back({use, spans.size(), elements, buffer_use.first, buffer_use.last});
  }
  // An operation list that is cut at collectives may read its units in another order than the one
  // in which it requested them.
  std::stable_sort(spans.begin(), spans.end(),
                   [](const GatherSpan& a, const GatherSpan& b) { return a.first < b.first; });
  return spans;
}

/// Counts the elements of gathered parameters alive at each plain instruction.
std::vector<int64_t> live_elements(const Program& program, const std::vector<GatherSpan>& spans) {
  std::vector<int64_t> live(program.instrs.size(), 0);
  for (const GatherSpan& span : spans)
    for (size_t i = span.first; i <= span.last; ++i) live[i] += span.elements;
  return live;
}

/// GatherReuse joins two spans of one unit, which saves the second gather, if few enough elements
/// are gathered between the two spans (reuse_distance) and the live elements stay below their
/// limit.
class GatherReuse {
 public:
  GatherReuse(Program& program, const GatherOptions& options, const std::vector<GatherSpan>& spans)
      : program_(program),
        options_(options),
        spans_(spans),
        live_elements_(live_elements(program, spans)) {}

  std::vector<GatherSpan> run() {
    for (const GatherSpan& span : spans_) {
      const auto before = latest_.find(span.use.unit);
      if (before != latest_.end() && may_join(joined_[before->second], span)) {
        join(joined_[before->second], span);
      } else {
        latest_[span.use.unit] = joined_.size();
        joined_.push_back(span);
      }
    }
    return std::move(joined_);
  }

 private:
  bool may_join(const GatherSpan& earlier, const GatherSpan& span) const {
    int64_t distance = 0;
    for (const GatherSpan& other : spans_)
      if (other.first > earlier.last && other.first < span.first) distance += other.elements;
    int64_t peak = 0;
    for (size_t i = earlier.last + 1; i < span.first; ++i) peak = std::max(peak, live_elements_[i]);
    return distance <= options_.reuse_distance &&
           peak <= options_.max_live_elements - span.elements;
  }

  void join(GatherSpan& earlier, const GatherSpan& span) {
    for (size_t i = earlier.last + 1; i < span.first; ++i) live_elements_[i] += span.elements;
    for (size_t i = span.first; i <= span.last; ++i)
      replace_buffer(program_.instrs[i], span.use.buffer, earlier.use.buffer);
    earlier.last = span.last;
  }

  Program& program_;
  const GatherOptions& options_;
  const std::vector<GatherSpan>& spans_;
  std::vector<int64_t> live_elements_;
  std::vector<GatherSpan> joined_;
  /// The index in `joined_` of each unit's latest span.
  std::map<UnitId, size_t> latest_;
};

/// Reserves storage for the secondary shards of all units that would otherwise be gathered more
/// than once in a step over all shards.
std::map<UnitId, BufferRange> reserve_secondary_shards(Program& program,
                                                       const UnitPlacement& placement,
                                                       const std::vector<GatherSpan>& spans) {
  const GroupPlace secondary = program.place_in_group(placement.groups().secondary);
  std::map<UnitId, int> gather_counts;
  for (const GatherSpan& span : spans)
    if (placement.spec(span.use.unit).sharded.parameters) ++gather_counts[span.use.unit];
  std::map<UnitId, BufferRange> shards;
  for (const bool quantized : {false, true}) {
    Buffer buffer{.name = quantized ? buffer_names::kQuantizedSecondary : buffer_names::kSecondary,
                  .category = Category::kParameters,
                  .persistent_kind = quantized ? PersistentKind::kQuantizedSecondaryShards
                                               : PersistentKind::kSecondaryShards,
                  .peer_visible = true};
    const auto id = static_cast<BufferId>(program.buffers.size());
    for (const GatherSpan& span : spans) {
      const UnitId unit = span.use.unit;
      const StorageFormat& format = placement.spec(unit).formats.compute;
      if (gather_counts[unit] < 2 || shards.contains(unit) ||
          static_cast<bool>(format.quantized) != quantized)
        continue;
      const int64_t shard = program.at(span.use.buffer).bytes / secondary.count;
      shards[unit] = {id, buffer.bytes, shard};
      buffer.bytes += shard;
      buffer.format = format;
    }
    if (buffer.bytes > 0) program.add(std::move(buffer));
  }
  return shards;
}

/// GatherBuilder makes the instructions that gather the parameters of each span.
class GatherBuilder {
 public:
  GatherBuilder(Program& program, const UnitPlacement& placement,
                std::map<UnitId, BufferRange> secondary)
      : program_(program), placement_(placement), secondary_(std::move(secondary)) {}

  std::vector<Instr> build_gather(const GatherSpan& span) {
    const auto shard = secondary_.find(span.use.unit);
    if (shard == secondary_.end()) return gather_from_shards(span);
    if (++gather_counts_[span.use.unit] > 1) return {gather_from_secondary(span, shard->second)};
    std::vector<Instr> chain = gather_from_shards(span);
    chain.push_back(keep_secondary_shard(chain.back(), shard->second));
    return chain;
  }

 private:
  /// Makes the instructions that gather a unit's parameters; the last one fills all of the buffer.
  std::vector<Instr> gather_from_shards(const GatherSpan& span) {
    const UnitId id = span.use.unit;
    const StateSpec& state = placement_.spec(id);
    const UnitRange shard = placement_.shard(id);
    const BufferRange whole = program_.full_range(span.use.buffer);
    std::vector<Instr> chain;
    const auto move = [&](const BufferRange& from, const BufferRange& to) {
      chain.push_back(make_copy(program_, from, to, id));
      return to;
    };
    const auto stage = [&](const char* name, Tier tier, bool peer_visible) {
      return add_temporary(program_, cat(name, ".", id, ".", span.number), tier, Category::kStaging,
                           state.formats.compute, shard.size(), peer_visible);
    };
    const auto lies_on = [&](const BufferRange& range, Tier tier) {
      return program_.at(range.buffer).tier == tier;
    };
    BufferRange source = placement_.parameters(id, shard);
    if (lies_on(source, Tier::kDisk)) source = move(source, stage("from_disk", Tier::kHost, false));
    if (!state.sharded.parameters) {
      move(source, whole);
    } else {
      if (lies_on(source, Tier::kHost))
        source = move(source, stage("from_host", Tier::kDevice, true));
      chain.push_back(make_collective(InstrKind::kAllGather,
                                      {state.shard_group, state.formats.compute.dtype}, source,
                                      whole, id));
    }
    for (Instr& instr : chain) instr.micro_batch = span.use.micro_batch;
    return chain;
  }

  /// Copies this rank's secondary shard out of the gathered unit. The copy runs on the lane of the
  /// gather, so that compute does not wait for it.
  Instr keep_secondary_shard(const Instr& gather, const BufferRange& shard) const {
    const GroupPlace secondary = program_.place_in_group(placement_.groups().secondary);
    Instr copy = gather;
    copy.kind = InstrKind::kCopy;
    copy.detail = {};
    copy.reads = {{gather.writes[0].buffer, secondary.index * shard.bytes, shard.bytes}};
    copy.writes = {shard};
    return copy;
  }

  Instr gather_from_secondary(const GatherSpan& span, const BufferRange& shard) const {
    const Communication communication{placement_.groups().secondary,
                                      placement_.spec(span.use.unit).formats.compute.dtype};
    Instr gather = make_collective(InstrKind::kAllGather, communication, shard,
                                   program_.full_range(span.use.buffer), span.use.unit);
    gather.micro_batch = span.use.micro_batch;
    return gather;
  }

  Program& program_;
  const UnitPlacement& placement_;
  std::map<UnitId, BufferRange> secondary_;
  std::map<UnitId, int> gather_counts_;
};

/// PrefetchPlanner decides before which plain instruction each span's parameters are gathered.
class PrefetchPlanner {
 public:
  PrefetchPlanner(const Program& program, const GatherOptions& options,
                  const std::vector<GatherSpan>& spans)
      : program_(program),
        options_(options),
        spans_(spans),
        ending_elements_(program.instrs.size()) {
    for (const GatherSpan& span : spans) ending_elements_[span.last] += span.elements;
  }

  std::vector<size_t> run() {
    for (size_t i = 0; i < program_.instrs.size(); ++i) {
      for (; reached_spans_ < spans_.size() && spans_[reached_spans_].first == i;
           ++reached_spans_) {
        // The span's first reader is instruction i, so its gather can be placed no later than here.
        if (positions_.size() == reached_spans_) place_next_gather(i);
        ahead_elements_ -= spans_[reached_spans_].elements;
      }
      if (program_.instrs[i].runs_ops())
        while (may_start()) place_next_gather(i);
      live_elements_ -= ending_elements_[i];
    }
    return std::move(positions_);
  }

 private:
  void place_next_gather(size_t at) {
    const int64_t elements = spans_[positions_.size()].elements;
    ahead_elements_ += elements;
    live_elements_ += elements;
    positions_.push_back(at);
  }

  /// Returns whether the next gather may be placed now. A unit larger than the limit still overlaps
  /// the work before it.
  bool may_start() const {
    if (positions_.size() == spans_.size() || options_.prefetch_elements <= 0) return false;
    const int64_t elements = spans_[positions_.size()].elements;
    return (ahead_elements_ == 0 || ahead_elements_ + elements <= options_.prefetch_elements) &&
           live_elements_ + elements <= options_.max_live_elements;
  }

  const Program& program_;
  const GatherOptions& options_;
  const std::vector<GatherSpan>& spans_;
  /// The number of gathered elements whose last reader is instruction i, for each i.
  std::vector<int64_t> ending_elements_;
  std::vector<size_t> positions_;
  /// The number of spans whose first reader the walk has reached.
  size_t reached_spans_ = 0;
  /// Elements of placed gathers whose first reader the walk has not reached yet
  /// (`ahead_elements_`), and of those whose last reader it has not reached yet (`live_elements_`).
  int64_t ahead_elements_ = 0;
  int64_t live_elements_ = 0;
};

}  // namespace

std::vector<Insertion> gather_parameters(Program& program, const UnitPlacement& placement,
                                         const std::vector<ParameterUse>& uses,
                                         const GatherOptions& options) {
  std::vector<GatherSpan> spans = gather_spans_of(program, uses);
  if (options.reuse_distance > 0) spans = GatherReuse(program, options, spans).run();
  std::map<UnitId, BufferRange> secondary;
  if (options.keeps_secondary_shards)
    secondary = reserve_secondary_shards(program, placement, spans);
  GatherBuilder gathers(program, placement, std::move(secondary));
  const std::vector<size_t> positions = PrefetchPlanner(program, options, spans).run();
  std::vector<Insertion> insertions;
  for (size_t i = 0; i < spans.size(); ++i)
    insertions.push_back({.plain_instr = positions[i],
                          .waits_for_compute = true,
                          .instrs = gathers.build_gather(spans[i])});
  return insertions;
}

}  // namespace ftrun
