#pragma once

#include <span>
#include <vector>

#include "graph/storage.h"
#include "program/program.h"

namespace ftrun {

/// LaneClock holds the latest instruction of every lane that is done; -1: none.
using LaneClock = std::vector<InstrId>;
inline constexpr auto kComputeLane = static_cast<size_t>(Lane::kCompute);
/// Makes a clock with nothing done on any of the program's lanes.
LaneClock nothing_done(const Program& program);

/// LaneClocks holds a clock for each instruction of a program, in one piece of memory.
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

/// Computes what is known to be done when each instruction starts, by the order of its lane and the
/// waits (a vector clock, Mattern 1989). Ignores waits that do not point backwards.
LaneClocks known_done(const Program& program);

/// Computes when each buffer is in use, in positions of the instruction list. An instruction on
/// another lane than compute may run from the end of its waits until compute knows that it is done,
/// so its buffers live all that time. A result lives to the end.
std::vector<StorageRequest> buffer_lifetimes(const Program& program);

}  // namespace ftrun
