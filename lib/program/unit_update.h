#pragma once

#include <cstdint>

#include "model/description.h"
#include "program/program.h"
#include "program/state_options.h"
#include "program/unit_placement.h"

namespace ftrun {

/// Returns the number of slots of the norm buffer (F64): one for each norm range
/// (GradientNormRange) and each rank that may hold a part of it; the sums are added in this order.
/// If that would be more than StateOptions::max_gradient_norm_slots, there is one slot for each
/// range, in which the all-reduce sums the parts of all ranks.
int64_t gradient_norm_slots(const StateOptions& options, const UnitPlacement& placement);

/// Adds instructions to the program that sum the squares of this rank's part of the gradients and
/// add them over the ranks.
void add_gradient_norm(Program& program, const StateOptions& options,
                       const UnitPlacement& placement, BufferId norm);

/// Adds instructions to the program that update all units and gather the updated parameters.
/// Gathers are joined until they have `bucket_elements` elements (DeepSpeed's
/// allgather_bucket_size).
void add_updates(Program& program, const ModelDescription& model, const StateOptions& options,
                 const UnitPlacement& placement, int64_t bucket_elements);

}  // namespace ftrun
