#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/program_checker.h"

namespace ftrun {

/// Checks the operation lists of layers in the programs of all ranks. The operations of each list
/// must run in order, each exactly once, with each collective in its position; and lists of the
/// same graph must end at the same operation in all layers, micro-batches and ranks. The check does
/// not know the graphs: if a list is cut short in all places alike, only a read of unwritten bytes
/// reveals it.
void check_op_lists(std::span<const RankProgram> ranks, std::vector<std::string>& faults);

}  // namespace ftrun
