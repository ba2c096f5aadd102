#pragma once

#include <utility>
#include <vector>

#include "program/program.h"

namespace ftrun::fixtures {

/// Lists pairs (earlier, later) of instructions that touch the same bytes of memory, one of them
/// writing: bytes of a persistent buffer, or of an arena, whichever buffers have them. The pairs of
/// the decision and the instructions that depend on it are included. Compares every two
/// instructions.
std::vector<std::pair<InstrId, InstrId>> conflicts(const Program& program);

/// Returns whether two instructions of any lanes touch the same bytes, one of them writing.
bool in_conflict(const Program& program, size_t first, size_t second);

/// Lists those conflicts whose order the lanes and the waits leave open. Without any, all
/// executions that the waits allow compute the same as the list in its own order.
std::vector<std::pair<InstrId, InstrId>> unordered(
    const Program& program, const std::vector<std::pair<InstrId, InstrId>>& conflicts);

/// Returns whether, run in the order of the list, every read finds in memory what was last written
/// to its own buffer: no buffer has been overwritten by another that lies in the same place.
bool reads_its_own(const Program& program);

}  // namespace ftrun::fixtures
