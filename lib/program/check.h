#pragma once

#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// A rank and what it runs.
struct RankProgram {
  int rank = 0;
  const Program* program = nullptr;
};

/// Proves, before the first step, over the programs of ranks (all or some; equal programs may be
/// the same object): members of a group enter the same collectives in the same order with the same
/// ranges and dtypes, and groups never wait for each other; a whole copy is as many parts as its
/// group has ranks; the operations of a layer's list run in order, every one once (check_lists.h);
/// instructions have the ranges of their kind, and lists touch what they are bound to; nothing
/// reads bytes that no earlier instruction of the step wrote, unless they are given when it begins;
/// conflicting instructions of different lanes are ordered by waits; no two buffers that live at
/// the same time share arena bytes; what runs only in finite steps waits for the decision; disk
/// requests that start early share no bytes with the one before them; waits point backwards. Returns
/// one sentence a fault, with
/// the rank where there are several programs.
std::vector<std::string> check_programs(std::span<const RankProgram> ranks);

}  // namespace ftrun
