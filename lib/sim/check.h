#pragma once

#include <string>
#include <vector>

#include "sim/world.h"

namespace ftrun {

/// Checks, before the first step, the programs of all ranks of a world: members of a group enter
/// the same collectives in the same order with the same ranges and dtypes, and groups never wait
/// for each other; a whole copy has as many parts as its group has ranks; the operations of a
/// layer's list run in order, every one once (check_lists.h); instructions have the ranges of their
/// kind, and lists touch what they are bound to; nothing reads bytes that no earlier instruction of
/// the step wrote, unless they are given when it begins; conflicting instructions of different
/// lanes are ordered by waits; no two buffers that live at the same time share arena bytes; what
/// runs only in finite steps waits for the decision; disk requests that start early share no bytes
/// with the one before them; waits point backwards. Returns a sentence for each fault, with the
/// rank where there are several programs.
std::vector<std::string> check_world(const World& world);

}  // namespace ftrun
