#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/check.h"

namespace ftrun {

/// Follows the lists of layers through the programs of ranks: the operations of each run in their
/// order, every one once, each collective at its place; and lists of one graph end at the same
/// operation in all layers, micro-batches and ranks. What the operations are it does not know: a
/// list that is cut short everywhere alike shows by what is read and was not written.
void check_lists(std::span<const RankProgram> ranks, std::vector<std::string>& faults);

}  // namespace ftrun
