#pragma once

#include <string>

#include "exec/memory.h"
#include "model/description.h"
#include "partition/units.h"

namespace ftrun {

/// Where a step that was left out went wrong, from what lies in memory after it: a weight that is
/// not finite, else the gradient that backward wrote first among those that are not. "" when all of
/// them are finite and only the loss is not. Reads every weight, and every gradient: for failures
/// only.
std::string nonfinite_place(const ModelDescription& model, const Partition& partition,
                            const RankMemory& memory);

}  // namespace ftrun
