#include "program/lifetime.h"

#include <algorithm>
#include <array>

namespace ftrun {
namespace {

/// Position of the first compute instruction that waits, directly or through its lane's later
/// instructions, for each instruction; the end of the program when none does.
std::vector<int64_t> completion_times(const Program& program) {
  const auto count = static_cast<int64_t>(program.instrs.size());
  std::vector<int64_t> done(program.instrs.size(), count);
  for (int64_t i = 0; i < count; ++i) {
    const Instr& instr = program.instrs[static_cast<size_t>(i)];
    if (instr.lane != Lane::kCompute) continue;
    done[static_cast<size_t>(i)] = i;
    for (const InstrId wait : instr.waits)
      if (wait >= 0 && wait < i) done[static_cast<size_t>(wait)] = std::min(done[static_cast<size_t>(wait)], i);
  }
  // A lane runs in order: what stands before a finished instruction is finished too.
  int64_t latest = count;
  for (int64_t i = count; i-- > 0;) {
    if (program.instrs[static_cast<size_t>(i)].lane == Lane::kCompute) continue;
    latest = std::min(latest, done[static_cast<size_t>(i)]);
    done[static_cast<size_t>(i)] = latest;
  }
  return done;
}

/// Position from which each instruction may run: its own on the compute lane; on another lane, which
/// may be ahead of compute, the one after the last compute instruction that its lane has waited for.
std::vector<int64_t> start_times(const Program& program) {
  const auto count = static_cast<int64_t>(program.instrs.size());
  std::vector<int64_t> start(program.instrs.size());
  std::array<int64_t, kLaneCount> known{};
  for (int64_t i = 0; i < count; ++i) {
    const Instr& instr = program.instrs[static_cast<size_t>(i)];
    int64_t& after = known[static_cast<size_t>(instr.lane)];
    for (const InstrId wait : instr.waits)
      if (wait >= 0 && wait < i && program.instr(wait).lane == Lane::kCompute)
        after = std::max<int64_t>(after, wait + 1);
    start[static_cast<size_t>(i)] = instr.lane == Lane::kCompute ? i : after;
  }
  return start;
}

}  // namespace

std::vector<StorageRequest> buffer_lifetimes(const Program& program) {
  std::vector<StorageRequest> lifetimes(program.buffers.size());
  const std::vector<int64_t> start = start_times(program);
  const std::vector<int64_t> done = completion_times(program);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const auto touch = [&](const Range& range) {
      StorageRequest& life = lifetimes[static_cast<size_t>(range.buffer)];
      life.bytes = program.at(range.buffer).bytes;
      life.first = std::min(life.first, start[i]);
      life.last = std::max(life.last, done[i]);
    };
    for (const Range& range : program.instrs[i].reads) touch(range);
    for (const Range& range : program.instrs[i].writes) touch(range);
  }
  return lifetimes;
}

}  // namespace ftrun
