#include "program/check.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/error.h"
#include "program/lifetime.h"

namespace ftrun {
namespace {

using Faults = std::vector<std::string>;

std::string place(const Program& program, size_t at) {
  return cat("instruction ", at, " (", instr_label(program.instrs[at]), ")");
}

/// True when every range names a buffer and every collective one range: what the other checks rely on.
bool check_ranges(const Program& program, Faults& faults) {
  bool sound = true;
  const auto refuse = [&](const std::string& fault) {
    faults.push_back(fault);
    sound = false;
  };
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const auto inside = [&](const Range& range) {
      if (range.buffer < 0 || static_cast<size_t>(range.buffer) >= program.buffers.size())
        return refuse(cat(place(program, i), " touches buffer ", range.buffer, ", but there are ", program.buffers.size()));
      const Buffer& buffer = program.at(range.buffer);
      if (range.offset < 0 || range.bytes < 0 || range.bytes > buffer.bytes - range.offset)
        faults.push_back(cat(place(program, i), " touches bytes ", range.offset, "+", range.bytes, " of ",
                             buffer.name, ", which has ", buffer.bytes));
    };
    const Instr& instr = program.instrs[i];
    for (const Range& range : instr.reads) inside(range);
    for (const Range& range : instr.writes) inside(range);
    if (instr.group != CommGroup::kNone && instr.writes.size() != 1)
      refuse(cat(place(program, i), " is a collective over ", instr.writes.size(), " ranges instead of one"));
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
      if (!program.at(range.buffer).persistent &&
          !written[static_cast<size_t>(range.buffer)].hold(range.offset, range.offset + range.bytes))
        faults.push_back(cat(place(program, i), " reads bytes ", range.offset, "+", range.bytes, " of ",
                             program.at(range.buffer).name, " before they are written"));
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

/// For each instruction the latest instruction of every lane known to be done when it starts.
std::vector<std::array<InstrId, kLaneCount>> known_done(const Program& program, Faults& faults) {
  std::vector<std::array<InstrId, kLaneCount>> known(program.instrs.size());
  std::array<InstrId, kLaneCount> last{};
  last.fill(-1);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const auto own = static_cast<size_t>(instr.lane);
    std::array<InstrId, kLaneCount> now{};
    now.fill(-1);
    if (last[own] >= 0) now = known[static_cast<size_t>(last[own])];
    now[own] = last[own];
    for (const InstrId wait : instr.waits) {
      if (wait < 0 || wait >= static_cast<InstrId>(i)) {
        faults.push_back(cat(place(program, i), " waits for instruction ", wait, ", which does not come before it"));
        continue;
      }
      const auto lane = static_cast<size_t>(program.instr(wait).lane);
      now[lane] = std::max(now[lane], wait);
      for (size_t other = 0; other < kLaneCount; ++other)
        now[other] = std::max(now[other], known[static_cast<size_t>(wait)][other]);
    }
    known[i] = now;
    last[own] = static_cast<InstrId>(i);
  }
  return known;
}

void check_order(const Program& program, Faults& faults) {
  const auto known = known_done(program, faults);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Instr& earlier = program.instrs[j];
      if (earlier.lane == program.instrs[i].lane) continue;
      if (known[i][static_cast<size_t>(earlier.lane)] >= static_cast<InstrId>(j)) continue;
      if (touches_together(program.instrs[i], earlier))
        faults.push_back(cat(place(program, i), " does not wait for ", place(program, j),
                             ", which touches the same bytes"));
    }
  }
}

void check_arena(const Program& program, Faults& faults) {
  const std::vector<StorageRequest> lives = buffer_lifetimes(program);
  for (size_t a = 0; a < lives.size(); ++a) {
    const Buffer& x = program.buffers[a];
    if (x.persistent || lives[a].first > lives[a].last) continue;
    if (x.arena_offset < 0 || x.arena_offset + x.bytes > program.arena_bytes)
      faults.push_back(cat("buffer ", x.name, " lies outside the arena"));
    for (size_t b = 0; b < a; ++b) {
      const Buffer& y = program.buffers[b];
      if (y.persistent || lives[b].first > lives[a].last || lives[a].first > lives[b].last) continue;
      if (x.arena_offset < y.arena_offset + y.bytes && y.arena_offset < x.arena_offset + x.bytes)
        faults.push_back(cat("buffers ", y.name, " and ", x.name, " share arena bytes while both are in use"));
    }
  }
}

/// What all members of a group must agree on when they meet in a collective.
struct Collective {
  size_t at;
  InstrKind kind;
  CommGroup group;
  DType dtype;
  std::string buffer;
  int64_t offset;
  int64_t bytes;

  bool meets(const Collective& other) const {
    return kind == other.kind && group == other.group && dtype == other.dtype && buffer == other.buffer &&
           offset == other.offset && bytes == other.bytes;
  }
};

std::vector<Collective> collectives(const Program& program) {
  std::vector<Collective> found;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.group == CommGroup::kNone) continue;
    const Range& range = instr.writes[0];
    found.push_back({i, instr.kind, instr.group, instr.dtype, program.at(range.buffer).name, range.offset, range.bytes});
  }
  return found;
}

std::string entry(const Program& program, const Collective& c) {
  return cat(place(program, c.at), " with ", c.bytes, " bytes of ", c.buffer, " at ", c.offset, " as ", dtype_name(c.dtype));
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
      faults.push_back(cat("collective ", at, ": rank 0 enters ", entry(*ranks[0], first[at]), ", rank ", rank,
                           " enters ", entry(*ranks[rank], other[at])));
    else if (first.size() != other.size())
      faults.push_back(cat("rank 0 enters ", first.size(), " collectives, rank ", rank, " enters ", other.size()));
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
