#include "program/check.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "program/lifetime.h"

namespace ftrun {
namespace {

using Faults = std::vector<std::string>;

std::string place(const Program& program, size_t at) {
  return cat("instruction ", at, " (", instr_label(program.instrs[at]), ")");
}

/// True when every range names a buffer and every collective one range: what the other checks rely
/// on.
bool check_ranges(const Program& program, Faults& faults) {
  bool sound = true;
  const auto refuse = [&](const std::string& fault) {
    faults.push_back(fault);
    sound = false;
  };
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const auto inside = [&](const Range& range) {
      if (range.buffer < 0 || static_cast<size_t>(range.buffer) >= program.buffers.size())
        return refuse(cat(place(program, i), " touches buffer ", range.buffer, ", but there are ",
                          program.buffers.size()));
      const Buffer& buffer = program.at(range.buffer);
      if (range.offset < 0 || range.bytes < 0 || range.bytes > buffer.bytes - range.offset)
        faults.push_back(cat(place(program, i), " touches bytes ", range.offset, "+", range.bytes,
                             " of ", buffer.name, ", which has ", buffer.bytes));
    };
    const Instr& instr = program.instrs[i];
    for (const Range& range : instr.reads) inside(range);
    for (const Range& range : instr.writes) inside(range);
    if (instr.group != CommGroup::kNone &&
        (instr.writes.empty() || instr.reads.size() != instr.writes.size()))
      refuse(cat(place(program, i), " is a collective of ", instr.reads.size(), " ranges into ",
                 instr.writes.size()));
  }
  return sound;
}

/// Bytes of one buffer that were written: begin and end of stretches that do not touch.
class WrittenBytes {
 public:
  void add(int64_t begin, int64_t end) {
    auto it = ends_.upper_bound(begin);
    if (it != ends_.begin() && std::prev(it)->second >= begin) --it;
    for (; it != ends_.end() && it->first <= end; it = ends_.erase(it)) {
      begin = std::min(begin, it->first);
      end = std::max(end, it->second);
    }
    ends_[begin] = end;
  }
  bool hold(int64_t begin, int64_t end) const {
    const auto it = ends_.upper_bound(begin);
    return begin >= end || (it != ends_.begin() && std::prev(it)->second >= end);
  }

 private:
  std::map<int64_t, int64_t> ends_;
};

void check_written_before_read(const Program& program, Faults& faults) {
  std::vector<WrittenBytes> written(program.buffers.size());
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    for (const Range& range : program.instrs[i].reads)
      if (!program.at(range.buffer).persistent && !written[static_cast<size_t>(range.buffer)].hold(
                                                      range.offset, range.offset + range.bytes))
        faults.push_back(cat(place(program, i), " reads bytes ", range.offset, "+", range.bytes,
                             " of ", program.at(range.buffer).name, " before they are written"));
    for (const Range& range : program.instrs[i].writes)
      written[static_cast<size_t>(range.buffer)].add(range.offset, range.offset + range.bytes);
  }
}

bool touches_together(const Instr& a, const Instr& b) {
  const auto meet = [](const std::vector<Range>& x, const std::vector<Range>& y) {
    for (const Range& p : x)
      for (const Range& q : y)
        if (overlaps(p, q)) return true;
    return false;
  };
  return meet(a.writes, b.writes) || meet(a.writes, b.reads) || meet(a.reads, b.writes);
}

void check_waits(const Program& program, Faults& faults) {
  for (size_t i = 0; i < program.instrs.size(); ++i)
    for (const InstrId wait : program.instrs[i].waits)
      if (wait < 0 || wait >= static_cast<InstrId>(i))
        faults.push_back(cat(place(program, i), " waits for instruction ", wait,
                             ", which does not come before it"));
}

/// An instruction that may be left out must not start before it is known whether it is.
void check_decision(const Program& program, const std::vector<LaneClock>& known, Faults& faults) {
  InstrId decision = -1;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.kind == InstrKind::kDecide) decision = static_cast<InstrId>(i);
    if (!instr.if_finite) continue;
    if (decision < 0 || known[i][static_cast<size_t>(Lane::kCompute)] < decision)
      faults.push_back(cat(place(program, i),
                           " runs only if the step is finite, but does not wait for the decision"));
  }
}

void check_order(const Program& program, Faults& faults) {
  check_waits(program, faults);
  const auto known = known_done(program);
  check_decision(program, known, faults);
  // Instructions by the buffer they touch and their lane: only those can conflict, and what a lane
  // had done before something that is known to be done needs no second look.
  std::vector<std::array<std::vector<size_t>, kLaneCount>> touching(program.buffers.size());
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    std::set<BufferId> mine;
    for (const Range& range : instr.reads) mine.insert(range.buffer);
    for (const Range& range : instr.writes) mine.insert(range.buffer);
    std::set<size_t> unordered;
    for (const BufferId buffer : mine) {
      auto& lanes = touching[static_cast<size_t>(buffer)];
      for (size_t lane = 0; lane < kLaneCount; ++lane) {
        if (lane == static_cast<size_t>(instr.lane)) continue;
        for (auto j = lanes[lane].rbegin(); j != lanes[lane].rend(); ++j) {
          if (static_cast<InstrId>(*j) <= known[i][lane]) break;
          if (touches_together(instr, program.instrs[*j])) unordered.insert(*j);
        }
      }
      lanes[static_cast<size_t>(instr.lane)].push_back(i);
    }
    for (const size_t j : unordered)
      faults.push_back(cat(place(program, i), " does not wait for ", place(program, j),
                           ", which touches the same bytes"));
  }
}

/// Buffers of one arena that are in use at one moment, by where they lie.
class InUse {
 public:
  InUse(const Program& program, const std::vector<StorageRequest>& lives)
      : program_(program), lives_(lives) {}

  /// Takes a buffer whose use begins behind that of all before it, and returns those that it shares
  /// bytes with: all of them as long as there were none before.
  std::vector<size_t> add(size_t id) {
    while (!ends_.empty() && ends_.begin()->first < lives_[id].first) {
      by_offset_.erase({offset(ends_.begin()->second), ends_.begin()->second});
      ends_.erase(ends_.begin());
    }
    std::vector<size_t> meets;
    const auto here = by_offset_.emplace(offset(id), id).first;
    if (here != by_offset_.begin() && end(std::prev(here)->second) > offset(id))
      meets.push_back(std::prev(here)->second);
    for (auto next = std::next(here); next != by_offset_.end() && next->first < end(id); ++next)
      meets.push_back(next->second);
    ends_.emplace(lives_[id].last, id);
    return meets;
  }

 private:
  int64_t offset(size_t id) const { return program_.buffers[id].arena_offset; }
  int64_t end(size_t id) const { return offset(id) + program_.buffers[id].bytes; }

  const Program& program_;
  const std::vector<StorageRequest>& lives_;
  std::set<std::pair<int64_t, size_t>> by_offset_;
  std::set<std::pair<int64_t, size_t>> ends_;
};

void check_arena(const Program& program, Faults& faults) {
  const std::vector<StorageRequest> lives = buffer_lifetimes(program);
  std::vector<size_t> order;
  for (size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.persistent || lives[b].first > lives[b].last) continue;
    if (buffer.arena_offset < 0 ||
        buffer.arena_offset + buffer.bytes > program.arena(arena_of(buffer)))
      faults.push_back(cat("buffer ", buffer.name, " lies outside the arena"));
    if (buffer.bytes > 0) order.push_back(b);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lives[a].first < lives[b].first; });
  std::vector<InUse> arenas(kArenaCount, InUse(program, lives));
  std::set<std::pair<size_t, size_t>> shared;
  for (const size_t id : order)
    for (const size_t other : arenas[static_cast<size_t>(arena_of(program.buffers[id]))].add(id))
      shared.insert(std::minmax(id, other));
  for (const auto& [first, second] : shared)
    faults.push_back(cat("buffers ", program.buffers[first].name, " and ",
                         program.buffers[second].name, " share arena bytes while both are in use"));
}

/// What all members of a group must agree on when they meet in a collective: also where in whole
/// copies the ranges lie, which is the same on every rank. Where a rank's own part lies is its
/// affair.
struct Collective {
  size_t at;
  InstrKind kind;
  CommGroup group;
  DType dtype;
  std::vector<int64_t> bytes;
  std::vector<std::pair<std::string_view, int64_t>> whole;

  bool meets(const Collective& other) const {
    return kind == other.kind && group == other.group && dtype == other.dtype &&
           bytes == other.bytes && whole == other.whole;
  }
};

std::vector<Collective> collectives(const Program& program) {
  std::vector<Collective> found;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.group == CommGroup::kNone) continue;
    Collective c{i, instr.kind, instr.group, instr.dtype, {}, {}};
    for (const Range& range : instr.reads) c.bytes.push_back(range.bytes);
    for (const Range& range : instr.writes) c.bytes.push_back(range.bytes);
    // Replicas exchange parts: theirs begin alike, those of other shards do not.
    const bool parts = instr.group == CommGroup::kReplica;
    for (const Range& range : instr.kind == InstrKind::kReduceScatter ? instr.reads : instr.writes)
      c.whole.emplace_back(program.at(range.buffer).name, parts ? 0 : range.offset);
    found.push_back(std::move(c));
  }
  return found;
}

std::string entry(const Program& program, const Collective& c) {
  int64_t bytes = 0;
  for (const Range& range : program.instrs[c.at].writes) bytes += range.bytes;
  const Buffer& buffer = program.at(program.instrs[c.at].writes[0].buffer);
  return cat(place(program, c.at), " with ", bytes, " bytes of ", buffer.name, " as ",
             dtype_name(c.dtype));
}

void check_collectives(std::span<const Program* const> ranks, Faults& faults) {
  const std::vector<Collective> first = collectives(*ranks[0]);
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank] == ranks[0]) continue;
    const std::vector<Collective> other = collectives(*ranks[rank]);
    const size_t common = std::min(first.size(), other.size());
    size_t at = 0;
    while (at < common && first[at].meets(other[at])) ++at;
    if (at < common)
      faults.push_back(cat("collective ", at, ": rank 0 enters ", entry(*ranks[0], first[at]),
                           ", rank ", rank, " enters ", entry(*ranks[rank], other[at])));
    else if (first.size() != other.size())
      faults.push_back(cat("rank 0 enters ", first.size(), " collectives, rank ", rank, " enters ",
                           other.size()));
  }
}

}  // namespace

std::vector<std::string> check_programs(std::span<const Program* const> ranks) {
  Faults faults;
  std::set<const Program*> seen;
  bool sound = true;
  for (const Program* program : ranks) {
    if (!seen.insert(program).second) continue;
    if (!check_ranges(*program, faults)) {
      sound = false;
      continue;
    }
    check_written_before_read(*program, faults);
    check_order(*program, faults);
    check_arena(*program, faults);
  }
  if (sound && !ranks.empty()) check_collectives(ranks, faults);
  return faults;
}

}  // namespace ftrun
