#pragma once

#include <string>
#include <vector>

#include "sim/world.h"

namespace ftrun {

/// Checks, before the first step, the programs of all ranks of a world:
/// * Members of a group enter the same collectives in the same order with the same ranges and
///   dtypes, and groups never wait for each other.
/// * A whole copy has as many parts as its group has ranks.
/// * The operations of each operation list of a layer run in order, each once (check_op_lists.h).
/// * Instructions have the ranges that their kind requires; instructions of layers read and write
///   exactly the ranges to which their operations are bound.
/// * No instruction reads bytes that no earlier instruction of the step wrote, except bytes that
///   are given when the step begins (Program::initialized_ranges).
/// * Conflicting instructions of different lanes are ordered by waits.
/// * No two buffers that live at the same time share arena bytes.
/// * Nothing overwrites a program's result once it is written.
/// * Instructions that run only in finite steps wait for the decision.
/// * Disk requests that start early share no bytes with the one before them.
/// * Waits point backwards.
/// Returns a sentence for each fault, with the rank if there are several programs.
std::vector<std::string> find_program_faults(const World& world);

}  // namespace ftrun
