#pragma once

#include <utility>
#include <vector>

#include "program/program.h"

namespace ftrun::testing {

/// Lists all pairs (earlier, later) of instructions that touch the same bytes of a persistent
/// buffer or of an arena, where at least one of the two writes; different buffers may share bytes
/// of an arena. Also lists the pairs of the decision and the instructions that depend on it.
/// Compares every two instructions.
std::vector<std::pair<InstrId, InstrId>> conflicts(const Program& program);

/// Returns whether two instructions, on any lanes, touch the same bytes and at least one of them
/// writes.
bool in_conflict(const Program& program, size_t first, size_t second);

/// Lists the conflicts whose order is not given by lanes and waits. If there are none, every
/// execution that the waits allow computes the same results as the list in order.
std::vector<std::pair<InstrId, InstrId>> unordered_conflicts(
    const Program& program, const std::vector<std::pair<InstrId, InstrId>>& conflicts);

/// Returns whether, when the list runs in order, every read finds what was last written to the same
/// buffer, not bytes of another buffer that shares its memory.
bool reads_only_own_bytes(const Program& program);

}  // namespace ftrun::testing
