#include "program/lifetime.h"

#include <algorithm>

namespace ftrun {

LaneClock initial_lane_clock(const Program& program) {
  return LaneClock(static_cast<size_t>(lane_count(program)), -1);
}

LaneClocks::LaneClocks(const Program& program)
    : lanes_(static_cast<size_t>(lane_count(program))), ids_(program.instrs.size() * lanes_, -1) {}

LaneClocks vector_clocks(const Program& program) {
  LaneClocks known(program);
  LaneClock last = initial_lane_clock(program);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const auto own = static_cast<size_t>(instr.lane);
    const std::span<InstrId> now = known[i];
    if (last[own] >= 0) std::ranges::copy(known[static_cast<size_t>(last[own])], now.begin());
    now[own] = last[own];
    for (const InstrId wait : instr.waits) {
      if (wait < 0 || wait >= static_cast<InstrId>(i)) continue;
      const auto lane = static_cast<size_t>(program.instr(wait).lane);
      now[lane] = std::max(now[lane], wait);
      for (size_t other = 0; other < known.lanes(); ++other)
        now[other] = std::max(now[other], known[static_cast<size_t>(wait)][other]);
    }
    last[own] = static_cast<InstrId>(i);
  }
  return known;
}

namespace {

/// Computes for each instruction the position of the first compute instruction that starts only
/// after it is done. The position is the end of the program if there is no such compute
/// instruction.
std::vector<int64_t> completion_times(const Program& program, const LaneClocks& known) {
  const auto count = static_cast<int64_t>(program.instrs.size());
  std::vector<int64_t> done(program.instrs.size(), count);
  // Known progress of a lane never decreases, so one pass over the instructions of each lane is
  // enough.
  std::vector<std::vector<size_t>> pending(known.lanes());
  std::vector<size_t> next(known.lanes(), 0);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const auto own = static_cast<size_t>(program.instrs[i].lane);
    if (own != kComputeLane) {
      pending[own].push_back(i);
      continue;
    }
    done[i] = static_cast<int64_t>(i);
    for (size_t lane = 0; lane < known.lanes(); ++lane)
      for (; next[lane] < pending[lane].size() &&
             static_cast<InstrId>(pending[lane][next[lane]]) <= known[i][lane];
           ++next[lane])
        done[pending[lane][next[lane]]] = static_cast<int64_t>(i);
  }
  return done;
}

/// Computes the earliest position at which each instruction may run. An instruction on the compute
/// lane runs at its own position. An instruction on another lane may run ahead of compute: from the
/// position after the last compute instruction that must be done before it.
std::vector<int64_t> start_times(const Program& program, const LaneClocks& known) {
  std::vector<int64_t> start(program.instrs.size());
  for (size_t i = 0; i < program.instrs.size(); ++i)
    start[i] = program.instrs[i].lane == Lane::kCompute ? static_cast<int64_t>(i)
                                                        : known[i][kComputeLane] + 1;
  return start;
}

}  // namespace

std::vector<StorageRequest> buffer_lifetimes(const Program& program) {
  return buffer_lifetimes(program, vector_clocks(program));
}

std::vector<StorageRequest> buffer_lifetimes(const Program& program, const LaneClocks& known) {
  std::vector<StorageRequest> lifetimes(program.buffers.size());
  const std::vector<int64_t> start = start_times(program, known);
  const std::vector<int64_t> done = completion_times(program, known);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const auto touch = [&](const BufferRange& range) {
      StorageRequest& life = lifetimes[static_cast<size_t>(range.buffer)];
      const Buffer& buffer = program.at(range.buffer);
      life.bytes = buffer.bytes;
      life.first = std::min(life.first, start[i]);
      const bool is_result = buffer.is_result;
      life.last =
          std::max(life.last, is_result ? static_cast<int64_t>(program.instrs.size()) : done[i]);
    };
    for (const BufferRange& range : program.instrs[i].reads) touch(range);
    for (const BufferRange& range : program.instrs[i].writes) touch(range);
  }
  return lifetimes;
}

}  // namespace ftrun
