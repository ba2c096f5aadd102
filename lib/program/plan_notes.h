#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "program/step_plan.h"

namespace ftrun {

/// Lists, a line each, the reasons why a plan differs from the config's figures or from what a
/// reader may expect: buckets that were cut, small parameters that add up, gradients sent in a
/// wider dtype than weights, memory that a GPU holds besides the plan.
std::vector<std::string> plan_notes(const Config& config, const StepPlan& plan);

}  // namespace ftrun
