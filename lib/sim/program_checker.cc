#include "sim/program_checker.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/amount_text.h"
#include "base/collective_kind.h"
#include "base/error.h"
#include "base/run_in_parallel.h"
#include "program/lane_map.h"
#include "program/lifetime.h"
#include "program/update_operands.h"
#include "sim/check_op_lists.h"
#include "sim/walk.h"

namespace ftrun {
namespace {

using Faults = std::vector<std::string>;

std::string instr_text(const Program& program, size_t at) {
  return numbered_instr_text(program, static_cast<InstrId>(at));
}

std::string counted_noun(size_t count, std::string_view noun) {
  return count_text(static_cast<int64_t>(count), noun);
}

/// Returns the name of a buffer, quoted, because it may be a common word ("in").
std::string quoted_name(const Program& program, BufferId buffer) {
  return cat("buffer \"", program.at(buffer).name, "\"");
}

/// Returns whether every range lies within its buffer, and every collective has a range. The other
/// checks rely on this.
bool check_ranges(const Program& program, Faults& faults) {
  bool all_sound = true;
  const auto refuse = [&](const std::string& fault) {
    faults.push_back(fault);
    all_sound = false;
  };
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const auto check_range = [&](const BufferRange& range) {
      if (range.buffer < 0 || static_cast<size_t>(range.buffer) >= program.buffers.size())
        return refuse(cat(instr_text(program, i), " touches buffer ", range.buffer,
                          ", but there are ", program.buffers.size()));
      const Buffer& buffer = program.at(range.buffer);
      if (range.offset < 0 || range.bytes < 0 || range.bytes > buffer.bytes - range.offset)
        refuse(cat(instr_text(program, i), " touches bytes ", range.offset, "+", range.bytes,
                   " of ", buffer.name, ", which has ", buffer.bytes));
    };
    const Instr& instr = program.instrs[i];
    for (const BufferRange& range : instr.reads) check_range(range);
    for (const BufferRange& range : instr.writes) check_range(range);
    if (instr.runs_ops())
      for (const Binding& binding : instr.ops().bindings) check_range(binding.range);
    if (instr.group() < kNoGroup || instr.group() >= static_cast<GroupId>(program.groups.size()))
      refuse(cat(instr_text(program, i), " runs over group ", instr.group(), ", but there are ",
                 program.groups.size()));
    if (static_cast<int>(instr.lane) < 0 || static_cast<int>(instr.lane) >= lane_count(program))
      refuse(cat(instr_text(program, i), " is on lane ", static_cast<int>(instr.lane)));
    if (instr.is_transfer() &&
        (instr.group() == kNoGroup || instr.reads.size() + instr.writes.size() != 1))
      refuse(cat(instr_text(program, i), " is a transfer of ",
                 counted_noun(instr.reads.size() + instr.writes.size(), "range")));
    if (instr.is_collective() &&
        (instr.writes.empty() || instr.reads.size() != instr.writes.size()))
      refuse(cat(instr_text(program, i), " is a collective of ",
                 counted_noun(instr.reads.size(), "range"), " into ", instr.writes.size()));
  }
  return all_sound;
}

/// WrittenBytes are the bytes of one buffer that were written: begin and end of intervals that do
/// not touch, ascending. Most buffers have one interval.
class WrittenBytes {
 public:
  void add(int64_t begin, int64_t end) {
    // The intervals that touch the new one are joined with it.
    auto first = first_beginning_after(begin);
    if (first != intervals_.begin() && std::prev(first)->second >= begin) --first;
    auto last = first;
    for (; last != intervals_.end() && last->first <= end; ++last) {
      begin = std::min(begin, last->first);
      end = std::max(end, last->second);
    }
    if (first == last) {
      intervals_.insert(first, {begin, end});
      return;
    }
    *first = {begin, end};
    intervals_.erase(std::next(first), last);
  }
  bool contains(int64_t begin, int64_t end) {
    const auto next = first_beginning_after(begin);
    return begin >= end || (next != intervals_.begin() && std::prev(next)->second >= end);
  }

 private:
  using Interval = std::pair<int64_t, int64_t>;

  /// Finds the first interval that begins after a byte.
  std::vector<Interval>::iterator first_beginning_after(int64_t byte) {
    return std::upper_bound(
        intervals_.begin(), intervals_.end(), byte,
        [](int64_t value, const Interval& interval) { return value < interval.first; });
  }

  std::vector<Interval> intervals_;
};

void check_written_before_read(const Program& program, Faults& faults) {
  std::vector<WrittenBytes> written(program.buffers.size());
  const auto add = [&](const BufferRange& range) {
    written[static_cast<size_t>(range.buffer)].add(range.offset, range.offset + range.bytes);
  };
  for (const BufferRange& range : program.initialized_ranges) add(range);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const auto reads = [&](const BufferRange& range) {
      if (!written[static_cast<size_t>(range.buffer)].contains(range.offset,
                                                               range.offset + range.bytes))
        faults.push_back(cat(instr_text(program, i), " reads bytes ", range.offset, "+",
                             range.bytes, " of ", program.at(range.buffer).name,
                             " before they are written"));
    };
    for (const BufferRange& range : instr.reads) reads(range);
    if (instr.kind == InstrKind::kAccumulate)
      for (const BufferRange& range : instr.writes) reads(range);
    for (const BufferRange& range : instr.writes) add(range);
  }
}

/// Reports a buffer that a collective uses with a dtype other than its own.
void check_dtype(const Program& program, size_t at, BufferId id, DType dtype, Faults& faults) {
  if (program.at(id).format.dtype == dtype || program.at(id).format.dtype == DType::kU8) return;
  faults.push_back(cat(instr_text(program, at), " uses ", quoted_name(program, id), " as ",
                       dtype_name(dtype), ", but its dtype is ",
                       dtype_name(program.at(id).format.dtype)));
}

/// Checks the ranges of a shift or an all-to-all: each destination is as large as its source, both
/// consist of whole blocks, and they do not overlap. In a kCountedAllToAll the sizes may differ.
void check_moved_blocks(const Program& program, size_t at, Faults& faults) {
  const Instr& instr = program.instrs[at];
  const int ranks = program.place_in_group(instr.group()).count;
  const bool is_counted = instr.kind == InstrKind::kCountedAllToAll;
  const int64_t parts = instr.kind == InstrKind::kAllToAll ? ranks
                        : is_counted                       ? instr.communication().row_elements
                                                           : 1;
  if (is_counted && instr.reads.size() != 2)
    return faults.push_back(cat(instr_text(program, at), " moves rows and counts, but has ",
                                counted_noun(instr.reads.size(), "range")));
  if (instr.kind == InstrKind::kShift &&
      (instr.communication().shift < 1 || instr.communication().shift >= ranks))
    faults.push_back(cat(instr_text(program, at), " shifts by ", instr.communication().shift,
                         " among ", ranks, " ranks"));
  for (size_t i = 0; i < instr.writes.size(); ++i) {
    const BufferRange& from = instr.reads[i];
    const BufferRange& to = instr.writes[i];
    const bool is_counts = is_counted && i == 1;
    const DType dtype = is_counts ? DType::kI32 : instr.communication().dtype;
    for (const BufferRange* range : {&from, &to}) {
      const int64_t block = is_counts ? ranks * dtype_bytes(dtype) : parts * dtype_bytes(dtype);
      if (is_counts ? range->bytes != block : range->bytes % block != 0)
        faults.push_back(cat(instr_text(program, at), " moves ", range->bytes, " bytes of ",
                             quoted_name(program, range->buffer),
                             is_counts ? ", but counts are " : ", but not in blocks of ", block));
      check_dtype(program, at, range->buffer, dtype, faults);
    }
    if (from.bytes != to.bytes && !is_counted)
      faults.push_back(cat(instr_text(program, at), " moves ", from.bytes, " bytes of ",
                           quoted_name(program, from.buffer), " to ", to.bytes, " of ",
                           quoted_name(program, to.buffer)));
    if (overlaps(from, to))
      faults.push_back(cat(instr_text(program, at), " moves ", quoted_name(program, from.buffer),
                           " to where it lies"));
  }
}

/// Checks how the ranges of a collective fit together. An all-reduce is in place. In an all-gather
/// or a reduce-scatter the whole consists of parts of equal size, one for each rank of the group;
/// if the part overlaps the whole, it must be this rank's part of it. Buffers have the dtype of the
/// collective, or are U8.
void check_gathered_parts(const Program& program, size_t at, Faults& faults) {
  const Instr& instr = program.instrs[at];
  const GroupPlace group = program.place_in_group(instr.group());
  const bool is_all_reduce = instr.kind == InstrKind::kAllReduce;
  const bool is_all_gather = instr.kind == InstrKind::kAllGather;
  for (size_t i = 0; i < instr.writes.size(); ++i) {
    const BufferRange& part = is_all_gather ? instr.reads[i] : instr.writes[i];
    const BufferRange& whole = is_all_gather ? instr.writes[i] : instr.reads[i];
    const int64_t parts = is_all_reduce ? 1 : group.count;
    if (whole.bytes != part.bytes * parts)
      faults.push_back(cat(instr_text(program, at), is_all_gather ? " gathers " : " reduces ",
                           whole.bytes, " bytes of ", program.at(whole.buffer).name, ", but ",
                           parts, " parts of ", part.bytes, " are ", part.bytes * parts));
    const int64_t own = whole.offset + (is_all_reduce ? 0 : group.index * part.bytes);
    if ((is_all_reduce || overlaps(part, whole)) &&
        (part.buffer != whole.buffer || part.offset != own))
      faults.push_back(cat(instr_text(program, at), " has its part at byte ", part.offset, " of ",
                           program.at(part.buffer).name, ", which is not that of rank ",
                           group.index, " of ", program.at(whole.buffer).name));
    for (const BufferId id : std::set<BufferId>{part.buffer, whole.buffer})
      check_dtype(program, at, id, instr.communication().dtype, faults);
  }
}

/// Returns whether a transfer is sound: a send is on a link on which this rank is the sender, a
/// receive on another link, and the range has a size and dtype that the link can carry.
bool is_sound_transfer(const Program& program, const Instr& instr) {
  const bool sends = instr.kind == InstrKind::kSend;
  const std::vector<BufferRange>& ranges = instr.full_ranges();
  if (ranges.size() != 1 || !(sends ? instr.writes : instr.reads).empty()) return false;
  const ProgramGroup& group = program.group(instr.group());
  const DType dtype = program.at(ranges[0].buffer).format.dtype;
  return group.members.is_link() && group.place.count == 2 &&
         (group.members.ranks[static_cast<size_t>(group.place.index)] == group.members.sender) ==
             sends &&
         (dtype == instr.communication().dtype || dtype == DType::kU8) &&
         ranges[0].bytes % dtype_bytes(instr.communication().dtype) == 0;
}

/// Returns whether a copy runs on a lane that fits its tiers. Copies within a tier may run on the
/// compute lane and on communication lanes.
bool runs_on_its_link(const Program& program, const Instr& instr) {
  const Tier from = program.at(instr.reads[0].buffer).tier;
  const Tier to = program.at(instr.writes[0].buffer).tier;
  if (from == Tier::kDisk || to == Tier::kDisk)
    return instr.lane == Lane::kDisk && (from == Tier::kHost || to == Tier::kHost);
  if (from == to) return instr.lane == Lane::kCompute || is_communication(instr.lane);
  return instr.lane == (to == Tier::kHost ? Lane::kToHost : Lane::kToDevice);
}

/// Returns whether ranges of `cover` together hold all bytes of a range. It follows them from the
/// range's begin to its end. An instruction has few ranges, so this is faster than a set of
/// intervals.
bool is_covered(const BufferRange& range, const std::vector<BufferRange>& cover) {
  const int64_t end = range.offset + range.bytes;
  for (int64_t at = range.offset; at < end;) {
    int64_t reached = at;
    for (const BufferRange& other : cover)
      if (other.buffer == range.buffer && other.offset <= at)
        reached = std::max(reached, other.offset + other.bytes);
    if (reached == at) return false;
    at = reached;
  }
  return true;
}

/// Returns the ranges of which `cover` does not hold every byte, each as a whole.
std::vector<BufferRange> find_uncovered(const std::vector<BufferRange>& ranges,
                                        const std::vector<BufferRange>& cover) {
  std::vector<BufferRange> left;
  for (const BufferRange& range : ranges)
    if (!is_covered(range, cover)) left.push_back(range);
  return left;
}

/// Checks that an instruction reads and writes exactly the ranges to which its operations are
/// bound, because the passes see only its reads and writes.
void check_bindings(const Program& program, size_t at, Faults& faults) {
  const Instr& instr = program.instrs[at];
  std::vector<BufferRange> bound;
  for (const Binding& binding : instr.ops().bindings) bound.push_back(binding.range);
  std::vector<BufferRange> touched = instr.reads;
  touched.insert(touched.end(), instr.writes.begin(), instr.writes.end());
  for (const BufferRange& range : find_uncovered(bound, touched))
    faults.push_back(cat(instr_text(program, at), " is bound to bytes ", range.offset, "+",
                         range.bytes, " of ", program.at(range.buffer).name,
                         ", which it does not touch"));
  for (const BufferRange& range : find_uncovered(touched, bound))
    faults.push_back(cat(instr_text(program, at), " touches bytes ", range.offset, "+", range.bytes,
                         " of ", program.at(range.buffer).name, ", which it is not bound to"));
}

/// Checks that an instruction of a layer writes all gradients that it reads: it may read them only
/// to add to them. `written_gradients` collects the gradient buffers that such instructions have
/// written.
void check_sums(const Program& program, size_t at, std::set<BufferId>& written_gradients,
                Faults& faults) {
  const Instr& instr = program.instrs[at];
  std::vector<BufferRange> gradients;
  for (const BufferRange& range : instr.reads)
    if (written_gradients.contains(range.buffer)) gradients.push_back(range);
  for (const BufferRange& range : find_uncovered(gradients, instr.writes))
    faults.push_back(cat(instr_text(program, at), " reads bytes ", range.offset, "+", range.bytes,
                         " of ", program.at(range.buffer).name, " and does not add to them"));
  for (const BufferRange& range : instr.writes) {
    const Category category = program.at(range.buffer).category;
    if (category == Category::kGradients || category == Category::kBuckets)
      written_gradients.insert(range.buffer);
  }
}

/// Returns whether a range holds as many elements as the gradient of the update.
bool has_elements(const Program& program, const Instr& instr, const BufferRange& range) {
  return program.at(range.buffer).format.bytes(element_count(program, instr.reads[0])) ==
         range.bytes;
}

bool have_elements(const Program& program, const Instr& instr,
                   std::span<const BufferRange> ranges) {
  return std::all_of(ranges.begin(), ranges.end(),
                     [&](const BufferRange& range) { return has_elements(program, instr, range); });
}

/// Returns whether an update is sound: it writes the weights and states to the ranges from which it
/// reads them.
bool is_sound_update(const Program& program, const Instr& instr) {
  const std::optional<UpdateOperands> operands = decode_update_operands(program, instr);
  if (!operands || !instr.if_finite) return false;
  return have_elements(program, instr, instr.writes) &&
         std::equal(operands->updated.begin(), operands->updated.end(), instr.writes.begin());
}

/// Returns whether a kComputeScales is sound: it writes exactly the new scales that it reads.
bool is_sound_scale_computation(const Program& program, const Instr& instr) {
  const std::optional<UpdateOperands> operands = decode_update_operands(program, instr);
  if (!operands || !instr.if_finite) return false;
  return have_elements(program, instr, operands->updated) &&
         has_elements(program, instr, operands->gradient) &&
         std::equal(instr.writes.begin(), instr.writes.end(), operands->new_scales.begin());
}

/// Returns this rank's place in the group whose all-reduce sums a buffer.
GroupPlace place_of_sum(const Program& program, BufferId buffer) {
  for (const Instr& instr : program.instrs)
    if (instr.kind == InstrKind::kAllReduce && instr.writes[0].buffer == buffer)
      return program.place_in_group(instr.group());
  return {};
}

/// Returns whether a kGradientNorm is sound: every sum of squares has its own slot, one for each
/// norm range and rank of the pipeline stage. The sums are added in the order of slots, which gives
/// the same bits on all ranks. If ranks share slots, the all-reduce adds their sums.
bool is_sound_gradient_norm(const Program& program, const Instr& instr) {
  if (instr.writes.empty()) return instr.reads.empty() && instr.lane == Lane::kCompute;
  GroupPlace place = place_of_sum(program, instr.writes[0].buffer);
  place.count = std::max(1, place.count / program.stage.count);
  place.index %= place.count;
  const auto& slots = std::get<GradientNormSlots>(instr.detail);
  const bool own = slots.ranks == place.count && slots.index == place.index;
  if (!own && (slots.ranks != 1 || slots.index != 0)) return false;
  int64_t last = -1;
  for (const BufferRange& range : instr.writes) {
    const int64_t slot = range.offset / dtype_bytes(DType::kF64);
    if (range.bytes != dtype_bytes(DType::kF64) || slot % slots.ranks != slots.index ||
        slot <= last)
      return false;
    last = slot;
  }
  return instr.reads.size() == instr.writes.size() && instr.lane == Lane::kCompute;
}

/// Returns whether the instruction has the detail that its kind requires.
bool has_its_detail(const Instr& instr) {
  switch (traits_of(instr.kind).detail) {
    case InstrDetail::kNone:
      return std::holds_alternative<std::monostate>(instr.detail);
    case InstrDetail::kLayerOps:
      return instr.runs_ops();
    case InstrDetail::kCommunication:
      return instr.group() != kNoGroup;
    case InstrDetail::kNormSlots:
      return std::holds_alternative<GradientNormSlots>(instr.detail);
    case InstrDetail::kUpdate:
      return std::holds_alternative<UpdateDetail>(instr.detail);
    case InstrDetail::kDisk:
      return std::holds_alternative<std::monostate>(instr.detail) ||
             std::holds_alternative<DiskRequest>(instr.detail);
  }
  return false;
}

/// Returns whether an instruction has the detail, ranges and lane that its kind requires.
bool has_its_form(const Program& program, const Instr& instr) {
  if (!has_its_detail(instr)) return false;
  const size_t reads = instr.reads.size();
  const size_t writes = instr.writes.size();
  switch (instr.kind) {
    case InstrKind::kLoadBatch:
    case InstrKind::kClear:
    case InstrKind::kBegin:
      return reads == 0 && writes > 0 && instr.lane == Lane::kCompute;
    case InstrKind::kForward:
    case InstrKind::kBackward:
    case InstrKind::kInputGrad:
    case InstrKind::kWeightGrad:
      return instr.ops().graph >= 0 && instr.ops().op_count > 0 && instr.lane == Lane::kCompute;
    case InstrKind::kAllReduce:
    case InstrKind::kReduceScatter:
    case InstrKind::kAllGather:
    case InstrKind::kAllToAll:
    case InstrKind::kCountedAllToAll:
    case InstrKind::kShift:
      return instr.lane == lane_of(instr.group()) &&
             !program.group(instr.group()).members.is_link();
    case InstrKind::kSend:
    case InstrKind::kReceive:
      return instr.lane == lane_of(instr.group()) && is_sound_transfer(program, instr);
    case InstrKind::kCopy:
    case InstrKind::kAccumulate:
      return reads == 1 && writes == 1 && !overlaps(instr.reads[0], instr.writes[0]) &&
             element_count(program, instr.reads[0]) == element_count(program, instr.writes[0]) &&
             runs_on_its_link(program, instr);
    case InstrKind::kGradientNorm:
      return is_sound_gradient_norm(program, instr);
    case InstrKind::kDecide:
      return reads == 2 && writes == 0 && instr.lane == Lane::kCompute;
    case InstrKind::kComputeScales:
      return instr.lane == Lane::kCompute && is_sound_scale_computation(program, instr);
    case InstrKind::kUpdate:
      return instr.lane == Lane::kCompute && is_sound_update(program, instr);
  }
  return false;
}

void check_forms(const Program& program, Faults& faults) {
  std::set<BufferId> written_gradients;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (!has_its_form(program, instr))
      faults.push_back(cat(instr_text(program, i), " on the ", lane_name(instr.lane),
                           " lane reads ", counted_noun(instr.reads.size(), "range"),
                           " and writes ", instr.writes.size(),
                           ", a form that its kind does not allow"));
    else if (instr.is_collective())
      is_exchange(collective_kind(instr.kind)) ? check_moved_blocks(program, i, faults)
                                               : check_gathered_parts(program, i, faults);
    if (!instr.runs_ops()) continue;
    check_bindings(program, i, faults);
    check_sums(program, i, written_gradients, faults);
  }
}

bool conflicts(const Instr& a, const Instr& b) {
  const auto overlap = [](const std::vector<BufferRange>& x, const std::vector<BufferRange>& y) {
    for (const BufferRange& p : x)
      for (const BufferRange& q : y)
        if (overlaps(p, q)) return true;
    return false;
  };
  return overlap(a.writes, b.writes) || overlap(a.writes, b.reads) || overlap(a.reads, b.writes);
}

void check_waits(const Program& program, Faults& faults) {
  for (size_t i = 0; i < program.instrs.size(); ++i)
    for (const InstrId wait : program.instrs[i].waits)
      if (wait < 0 || wait >= static_cast<InstrId>(i))
        faults.push_back(cat(instr_text(program, i), " waits for instruction ", wait,
                             ", which does not come before it"));
}

/// Checks that no instruction that runs only in finite steps can start before the decision is
/// known.
void check_decision(const Program& program, const LaneClocks& clocks, Faults& faults) {
  InstrId decision = -1;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.kind == InstrKind::kDecide) decision = static_cast<InstrId>(i);
    if (!instr.if_finite) continue;
    if (decision < 0 || clocks[i][static_cast<size_t>(Lane::kCompute)] < decision)
      faults.push_back(cat(instr_text(program, i),
                           " runs only if the step is finite, but does not wait for the decision"));
  }
}

/// Lists the buffers that an instruction touches, ascending, each once.
void list_buffers(const Instr& instr, std::vector<BufferId>& buffers) {
  buffers.clear();
  for (const auto* ranges : {&instr.reads, &instr.writes})
    for (const BufferRange& range : *ranges) buffers.push_back(range.buffer);
  std::sort(buffers.begin(), buffers.end());
  buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
}

void check_order(const Program& program, const LaneClocks& clocks, Faults& faults) {
  check_waits(program, faults);
  check_decision(program, clocks, faults);
  // Instructions are listed by the buffer that they touch and by lane: only instructions of one
  // buffer can conflict, and those before a known completed instruction of a lane need no second
  // check.
  std::vector<LaneMap<std::vector<size_t>>> touching(program.buffers.size());
  std::vector<BufferId> touched_buffers;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    list_buffers(instr, touched_buffers);
    std::set<size_t> unordered;
    for (const BufferId buffer : touched_buffers) {
      LaneMap<std::vector<size_t>>& instrs = touching[static_cast<size_t>(buffer)];
      for (const auto& [lane, earlier] : instrs) {
        if (lane == instr.lane) continue;
        const InstrId done = clocks[i][static_cast<size_t>(lane)];
        for (auto j = earlier.rbegin(); j != earlier.rend(); ++j) {
          if (static_cast<InstrId>(*j) <= done) break;
          if (conflicts(instr, program.instrs[*j])) unordered.insert(*j);
        }
      }
      instrs[instr.lane].push_back(i);
    }
    for (const size_t j : unordered)
      faults.push_back(cat(instr_text(program, i), " does not wait for ", instr_text(program, j),
                           ", which touches the same bytes"));
  }
}

/// BuffersInUse holds the buffers of one arena that are in use at one moment, sorted by offset.
class BuffersInUse {
 public:
  BuffersInUse(const Program& program, const std::vector<StorageRequest>& lifetimes)
      : program_(program), lifetimes_(lifetimes) {}

  /// Adds a buffer and returns the buffers in use with which it shares bytes. Buffers are added in
  /// the order in which their use begins. All such buffers are found, unless some of those added
  /// before overlap each other.
  std::vector<size_t> add(size_t id) {
    while (!ends_.empty() && ends_.begin()->first < lifetimes_[id].first) {
      by_offset_.erase({offset(ends_.begin()->second), ends_.begin()->second});
      ends_.erase(ends_.begin());
    }
    std::vector<size_t> overlapping;
    const auto here = by_offset_.emplace(offset(id), id).first;
    if (here != by_offset_.begin() && end(std::prev(here)->second) > offset(id))
      overlapping.push_back(std::prev(here)->second);
    for (auto next = std::next(here); next != by_offset_.end() && next->first < end(id); ++next)
      overlapping.push_back(next->second);
    ends_.emplace(lifetimes_[id].last, id);
    return overlapping;
  }

 private:
  int64_t offset(size_t id) const { return program_.buffers[id].arena_offset; }
  int64_t end(size_t id) const { return offset(id) + program_.buffers[id].bytes; }

  const Program& program_;
  const std::vector<StorageRequest>& lifetimes_;
  std::set<std::pair<int64_t, size_t>> by_offset_;
  std::set<std::pair<int64_t, size_t>> ends_;
};

void check_arena(const Program& program, const LaneClocks& clocks, Faults& faults) {
  const std::vector<StorageRequest> lifetimes = compute_buffer_lifetimes(program, clocks);
  std::vector<size_t> order;
  for (size_t b = 0; b < lifetimes.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.persistent_kind || lifetimes[b].first > lifetimes[b].last) continue;
    if (buffer.arena_offset < 0 ||
        buffer.arena_offset + buffer.bytes > program.bytes_of_arena(arena_of(buffer)))
      faults.push_back(cat("buffer ", buffer.name, " lies outside the arena"));
    if (buffer.bytes > 0) order.push_back(b);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].first < lifetimes[b].first; });
  std::vector<BuffersInUse> arenas(kArenaCount, BuffersInUse(program, lifetimes));
  std::set<std::pair<size_t, size_t>> shared;
  for (const size_t id : order)
    for (const size_t other : arenas[static_cast<size_t>(arena_of(program.buffers[id]))].add(id))
      shared.insert(std::minmax(id, other));
  for (const auto& [first, second] : shared)
    faults.push_back(cat("buffers ", program.buffers[first].name, " and ",
                         program.buffers[second].name, " share arena bytes while both are in use"));
}

/// Checks that nothing overwrites the result once it is written. This does not rely on
/// compute_buffer_lifetimes(), which the placement of buffers relies on.
void check_result(const Program& program, Faults& faults) {
  const BufferId result = find_result_buffer(program);
  if (result < 0) return;
  bool is_written = false;
  for (size_t i = 0; i < program.instrs.size(); ++i)
    for (const BufferRange& range : program.instrs[i].writes) {
      if (range.buffer == result)
        is_written = true;
      else if (is_written && share_bytes(program, range, program.full_range(result)))
        faults.push_back(
            cat(instr_text(program, i), " writes over the result ", program.at(result).name));
    }
}

/// Checks that a disk request that starts early shares no written bytes with the request before it.
void check_disk_requests(const Program& program, Faults& faults) {
  std::optional<size_t> last;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const bool disk = instr.lane == Lane::kDisk;
    if (instr.starts_early() && (!disk || !last))
      faults.push_back(
          cat(instr_text(program, i), " starts early, but no disk request comes before it"));
    if (!disk) continue;
    const auto before = std::exchange(last, i);
    if (!instr.starts_early() || !before) continue;
    const Instr& other = program.instrs[*before];
    if (share_written_bytes(program, instr, other))
      faults.push_back(cat(instr_text(program, i), " starts before ", instr_text(program, *before),
                           " is done, which touches the same bytes"));
  }
}

/// Checks a program without the programs of other ranks. Returns false if its ranges are so wrong
/// that no other check makes sense.
bool check_program(const Program& program, Faults& faults) {
  if (!check_ranges(program, faults)) return false;
  check_forms(program, faults);
  check_written_before_read(program, faults);
  const LaneClocks clocks = compute_vector_clocks(program);
  check_order(program, clocks, faults);
  check_arena(program, clocks, faults);
  check_result(program, faults);
  check_disk_requests(program, faults);
  return true;
}

}  // namespace

std::vector<std::string> find_program_faults(const World& world) {
  Faults faults;
  std::vector<RankProgram> first(world.programs.size());
  for (const World::Rank& rank : world.ranks) {
    RankProgram& of_program = first[static_cast<size_t>(rank.program)];
    if (of_program.program == nullptr)
      of_program = {rank.number, world.programs[static_cast<size_t>(rank.program)]};
  }
  std::vector<Faults> found(first.size());
  std::vector<char> sound(first.size());
  run_in_parallel(first.size(),
                  [&](size_t p) { sound[p] = check_program(*first[p].program, found[p]) ? 1 : 0; });
  for (size_t p = 0; p < first.size(); ++p)
    for (std::string& fault : found[p])
      faults.push_back(first.size() > 1 ? cat("rank ", first[p].rank, ": ", fault)
                                        : std::move(fault));
  if (std::find(sound.begin(), sound.end(), 0) != sound.end()) return faults;
  check_op_lists(first, faults);
  const std::string fault = walk_collectives(world);
  if (!fault.empty()) faults.push_back(fault);
  return faults;
}

}  // namespace ftrun
