#pragma once

#include <cstddef>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// Instructions that a pass adds to the plain program of a step, which only computes: movement to
/// and from what computes. Passes say where, weave() puts all of it in at once.
struct Insertion {
  /// The plain instruction that they stand at, and on which side of it.
  size_t at = 0;
  bool after = false;
  /// May not start before the compute instruction that comes to stand before them is done: what
  /// they bring takes memory.
  bool held = false;
  std::vector<Instr> instrs;
};

/// The program with all insertions; those at one place in their order.
Program weave(Program program, std::vector<Insertion> insertions);

/// First and last instruction that touches a buffer.
struct Touches {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t first = kNone;
  size_t last = 0;
};
/// Lists the instructions that touch each buffer, indexed by buffer.
std::vector<Touches> find_touches(const Program& program);

/// Lets an instruction touch another buffer in place of one.
void rename_buffer(Instr& instr, BufferId from, BufferId to);

}  // namespace ftrun
