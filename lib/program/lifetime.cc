#include "program/lifetime.h"

#include <algorithm>

namespace ftrun {

LaneClock initial_lane_clock(const Program& program) {
  return LaneClock(static_cast<size_t>(lane_count(program)), -1);
}

LaneClocks::LaneClocks(const Program& program)
    : lanes_(static_cast<size_t>(lane_count(program))), ids_(program.instrs.size() * lanes_, -1) {}

LaneClocks compute_vector_clocks(const Program& program) {
  LaneClocks clocks(program);
  LaneClock last = initial_lane_clock(program);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const auto own_lane = static_cast<size_t>(instr.lane);
    const std::span<InstrId> clock = clocks[i];
    if (last[own_lane] >= 0)
      std::ranges::copy(clocks[static_cast<size_t>(last[own_lane])], clock.begin());
    clock[own_lane] = last[own_lane];
    for (const InstrId wait : instr.waits) {
      if (wait < 0 || wait >= static_cast<InstrId>(i)) continue;
      const auto lane = static_cast<size_t>(program.instr(wait).lane);
      clock[lane] = std::max(clock[lane], wait);
      for (size_t other = 0; other < clocks.lanes(); ++other)
        clock[other] = std::max(clock[other], clocks[static_cast<size_t>(wait)][other]);
    }
    last[own_lane] = static_cast<InstrId>(i);
  }
  return clocks;
}

namespace {

/// Computes for each instruction the position of the first compute instruction that starts only
/// after it is done. The position is the end of the program if there is no such compute
/// instruction.
std::vector<int64_t> completion_times(const Program& program, const LaneClocks& clocks) {
  const auto count = static_cast<int64_t>(program.instrs.size());
  std::vector<int64_t> done(program.instrs.size(), count);
  // Known progress of a lane never decreases, so one pass over the instructions of each lane is
  // enough.
  std::vector<std::vector<size_t>> pending(clocks.lanes());
  std::vector<size_t> next(clocks.lanes(), 0);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const auto own_lane = static_cast<size_t>(program.instrs[i].lane);
    if (own_lane != kComputeLane) {
      pending[own_lane].push_back(i);
      continue;
    }
    done[i] = static_cast<int64_t>(i);
    for (size_t lane = 0; lane < clocks.lanes(); ++lane)
      for (; next[lane] < pending[lane].size() &&
             static_cast<InstrId>(pending[lane][next[lane]]) <= clocks[i][lane];
           ++next[lane])
        done[pending[lane][next[lane]]] = static_cast<int64_t>(i);
  }
  return done;
}

/// Computes the earliest position at which each instruction may run. An instruction on the compute
/// lane runs at its own position. An instruction on another lane may run ahead of compute: from the
/// position after the last compute instruction that must be done before it.
std::vector<int64_t> start_times(const Program& program, const LaneClocks& clocks) {
  std::vector<int64_t> start(program.instrs.size());
  for (size_t i = 0; i < program.instrs.size(); ++i)
    start[i] = program.instrs[i].lane == Lane::kCompute ? static_cast<int64_t>(i)
                                                        : clocks[i][kComputeLane] + 1;
  return start;
}

}  // namespace

std::vector<StorageRequest> compute_buffer_lifetimes(const Program& program) {
  return compute_buffer_lifetimes(program, compute_vector_clocks(program));
}

std::vector<StorageRequest> compute_buffer_lifetimes(const Program& program,
                                                     const LaneClocks& clocks) {
  std::vector<StorageRequest> lifetimes(program.buffers.size());
  const std::vector<int64_t> start = start_times(program, clocks);
  const std::vector<int64_t> done = completion_times(program, clocks);
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
