#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "program/step_plan.h"

namespace ftrun {

/// Lists the reasons why a plan differs from the numbers in the config or from what a reader may
/// expect, one line each: buckets that were cut, small parameters that add up, gradients sent in a
/// wider dtype than weights, memory that a GPU holds in addition to the plan.
std::vector<std::string> list_plan_notes(const Config& config, const StepPlan& plan);

}  // namespace ftrun
