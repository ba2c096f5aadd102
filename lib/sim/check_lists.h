#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/check_world.h"

namespace ftrun {

/// Checks the lists of layers in the programs of ranks: the operations of each run in their order,
/// every one once, each collective at its place; and lists of one graph end at the same operation
/// in all layers, micro-batches and ranks. The check does not know the operations: a list that is
/// cut short everywhere alike shows only as a read of bytes that were not written.
void check_lists(std::span<const RankProgram> ranks, std::vector<std::string>& faults);

}  // namespace ftrun
