#include <algorithm>
#include <array>
#include <utility>

#include "program/passes.h"

namespace ftrun {
namespace {

bool any_overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Range& x) {
    return std::any_of(b.begin(), b.end(), [&](const Range& y) { return overlaps(x, y); });
  });
}

/// Read after write, write after read, write after write.
bool conflicts(const Instr& later, const Instr& earlier) {
  return any_overlap(later.reads, earlier.writes) || any_overlap(later.writes, earlier.reads) ||
         any_overlap(later.writes, earlier.writes);
}

/// The last earlier instruction of another lane that `at` conflicts with, or -1. What stands before
/// it on that lane is done when it is.
InstrId last_conflict(const Program& program, size_t at, Lane lane) {
  for (size_t i = at; i-- > 0;) {
    const Instr& earlier = program.instrs[i];
    if (earlier.lane == lane && conflicts(program.instrs[at], earlier)) return static_cast<InstrId>(i);
  }
  return -1;
}

}  // namespace

Program order_communication(Program program, bool overlap) {
  // Latest instruction of each lane that each lane has already waited for.
  std::array<std::array<InstrId, kLaneCount>, kLaneCount> seen{};
  for (auto& row : seen) row.fill(-1);
  std::array<InstrId, kLaneCount> latest{};
  latest.fill(-1);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    Instr& instr = program.instrs[i];
    const auto own = static_cast<size_t>(instr.lane);
    instr.waits.clear();
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      if (lane == own) continue;
      InstrId wait = last_conflict(program, i, static_cast<Lane>(lane));
      if (!overlap && instr.lane == Lane::kCompute) wait = latest[lane];
      if (wait <= seen[own][lane]) continue;
      instr.waits.push_back(wait);
      seen[own][lane] = wait;
    }
    latest[own] = static_cast<InstrId>(i);
  }
  return program;
}

}  // namespace ftrun
