#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "program/step_plan.h"

namespace ftrun {

/// Explains, a line each, how a plan differs from the config's figures or from what a reader may
/// expect: buckets that were cut, small parameters that add up, gradients sent in a wider dtype
/// than weights, memory that a GPU holds beside the plan.
std::vector<std::string> plan_notes(const Config& config, const StepPlan& plan);

}  // namespace ftrun
