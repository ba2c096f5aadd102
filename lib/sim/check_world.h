#pragma once

#include <string>
#include <vector>

#include "sim/world.h"

namespace ftrun {

/// Checks, before the first step, the programs of all ranks of a world:
/// * Members of a group enter the same collectives in the same order with the same ranges and
///   dtypes, and groups never wait for each other.
/// * A whole copy has as many parts as its group has ranks.
/// * The operations of a layer's list run in order, every one once (check_lists.h).
/// * Instructions have the ranges of their kind, and lists touch what they are bound to.
/// * Nothing reads bytes that no earlier instruction of the step wrote, unless they are given when
///   it begins.
/// * Conflicting instructions of different lanes are ordered by waits.
/// * No two buffers that live at the same time share arena bytes.
/// * Instructions that run only in finite steps wait for the decision.
/// * Disk requests that start early share no bytes with the one before them.
/// * Waits point backwards.
/// Returns a sentence for each fault, with the rank where there are several programs.
std::vector<std::string> check_world(const World& world);

}  // namespace ftrun
