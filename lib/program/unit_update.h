#pragma once

#include <cstdint>

#include "model/description.h"
#include "program/program.h"
#include "program/state_options.h"
#include "program/unit_placement.h"

namespace ftrun {

/// Counts the slots of the norm buffer (F64): one for each norm range (NormRange) and rank that may
/// hold a part of it, added in this order; or, where these would exceed
/// StateOptions::most_norm_slots, one for each range, in which the exchange adds up all ranks'
/// parts.
int64_t norm_slots(const StateOptions& options, const UnitPlacement& placement);

/// Adds the sum of squares of this rank's part of the gradients to the program, and the exchange of
/// the sum.
void add_norm(Program& program, const StateOptions& options, const UnitPlacement& placement,
              BufferId norm);

/// Adds the update of all units to the program and the gathers of the updated parameters, joined
/// until they have `bucket_elements` elements (DeepSpeed's allgather_bucket_size).
void add_updates(Program& program, const ModelDescription& model, const StateOptions& options,
                 const UnitPlacement& placement, int64_t bucket_elements);

}  // namespace ftrun
