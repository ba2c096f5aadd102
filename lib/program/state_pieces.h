#pragma once

#include <vector>

#include "model/description.h"
#include "program/program.h"
#include "program/state_options.h"
#include "program/unit_placement.h"

namespace ftrun {

/// Lists the pieces of state with their ranges, for loading, saving and export. In a training step
/// that takes snapshots, it also adds the snapshots' buffers to the program.
std::vector<UnitStatePiece> list_unit_state_pieces(Program& program, const ModelDescription& model,
                                                   const StateOptions& options,
                                                   const UnitPlacement& placement);

/// Returns the sharding of each unit, indexed by unit id.
std::vector<UnitSharding> sharding_of_units(const StateOptions& options,
                                            const UnitPlacement& placement);

}  // namespace ftrun
