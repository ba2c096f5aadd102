#pragma once

#include <cstddef>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// Insertion holds instructions that a pass adds to the plain program of a step. The plain program
/// only computes; insertions move data to and from its instructions. merge_insertions() inserts all
/// of them at once.
struct Insertion {
  /// The plain instruction next to which the instructions are inserted, and on which side of it.
  size_t plain_instr = 0;
  bool is_after = false;
  /// Says whether the instructions wait until the compute instruction that precedes them is done,
  /// because their results need memory that is free only then.
  bool waits_for_compute = false;
  std::vector<Instr> instrs;
};

/// Inserts all insertions into the program; insertions at the same place keep their order.
Program merge_insertions(Program program, std::vector<Insertion> insertions);

/// BufferUse holds the first and the last instruction that reads or writes a buffer.
struct BufferUse {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t first = kNone;
  size_t last = 0;
};
/// Finds the first and the last use of each buffer, indexed by buffer.
std::vector<BufferUse> find_buffer_uses(const Program& program);

/// Replaces buffer `from` by `to` in the ranges of an instruction.
void replace_buffer(Instr& instr, BufferId from, BufferId to);

}  // namespace ftrun
