#include "program/passes.h"

#include <algorithm>

namespace ftrun {
namespace {

/// Bytes of memory or of the disk: those of a persistent buffer, or of an arena, which several
/// buffers may use one after another.
struct PlacedBytes {
  bool persistent = false;
  int32_t space = 0;
  int64_t begin = 0;
  int64_t end = 0;

  bool meet(const PlacedBytes& other) const {
    return persistent == other.persistent && space == other.space && begin < other.end &&
           other.begin < end;
  }
};

PlacedBytes placed(const Program& program, const Range& range) {
  const Buffer& buffer = program.at(range.buffer);
  if (buffer.persistent) return {true, range.buffer, range.offset, range.offset + range.bytes};
  const int64_t begin = buffer.arena_offset + range.offset;
  return {false, static_cast<int32_t>(arena_of(buffer)), begin, begin + range.bytes};
}

bool any_meet(const Program& program, const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Range& x) {
    return std::any_of(b.begin(), b.end(),
                       [&](const Range& y) { return placed(program, x).meet(placed(program, y)); });
  });
}

bool are_independent(const Program& program, const Instr& a, const Instr& b) {
  return !any_meet(program, a.writes, b.reads) && !any_meet(program, a.reads, b.writes) &&
         !any_meet(program, a.writes, b.writes);
}

}  // namespace

Program overlap_disk_requests(Program program) {
  const Instr* last = nullptr;
  for (Instr& instr : program.instrs) {
    if (instr.lane != Lane::kDisk) continue;
    instr.detail = DiskRequest{last != nullptr && are_independent(program, *last, instr)};
    last = &instr;
  }
  return program;
}

}  // namespace ftrun
