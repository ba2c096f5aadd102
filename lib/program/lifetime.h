#pragma once

#include <span>
#include <vector>

#include "graph/storage.h"
#include "program/program.h"

namespace ftrun {

/// LaneClock holds, for each lane, the latest instruction that is done; -1: none.
using LaneClock = std::vector<InstrId>;
inline constexpr auto kComputeLane = static_cast<size_t>(Lane::kCompute);
/// Makes a clock at which no instruction of the program is done.
LaneClock initial_lane_clock(const Program& program);

/// LaneClocks holds a clock for each instruction of a program, in one contiguous block of memory.
class LaneClocks {
 public:
  explicit LaneClocks(const Program& program);

  std::span<InstrId> operator[](size_t instr) { return {ids_.data() + instr * lanes_, lanes_}; }
  std::span<const InstrId> operator[](size_t instr) const {
    return {ids_.data() + instr * lanes_, lanes_};
  }
  size_t lanes() const { return lanes_; }

 private:
  size_t lanes_;
  std::vector<InstrId> ids_;
};

/// Computes which instructions are known to be done when each instruction starts, from the order of
/// its lane and its waits (vector clocks, Mattern 1989). Ignores waits for later instructions.
LaneClocks compute_vector_clocks(const Program& program);

/// Computes when each buffer is in use, as positions in the instruction list. An instruction that
/// is not on the compute lane may run at any time between the end of its waits and the first
/// compute instruction that waits for it, directly or indirectly, so its buffers are in use for all
/// that time. A result buffer is in use until the end of the program.
std::vector<StorageRequest> compute_buffer_lifetimes(const Program& program);
/// Does the same with the result `clocks` of compute_vector_clocks() for the program.
std::vector<StorageRequest> compute_buffer_lifetimes(const Program& program,
                                                     const LaneClocks& clocks);

}  // namespace ftrun
