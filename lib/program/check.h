#pragma once

#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// Proves, before the first step, over the programs of all ranks (one entry a rank, equal programs
/// may be the same object): members of a group enter the same collectives in the same order with
/// the same ranges and dtypes; nothing reads bytes that no earlier instruction wrote, unless the
/// buffer is persistent; conflicting instructions of different lanes are ordered by waits; no two
/// buffers that live at the same time share arena bytes; what runs only in finite steps waits for
/// the decision; waits point backwards. Returns one sentence a fault.
std::vector<std::string> check_programs(std::span<const Program* const> ranks);

}  // namespace ftrun
