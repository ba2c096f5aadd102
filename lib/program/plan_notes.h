#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "program/step_plan.h"

namespace ftrun {

/// Explains how a plan differs from the config's figures, or from what a reader may expect, a line
/// each: buckets that were cut, small parameters that weigh, gradients that are sent wider than
/// weights are, what a GPU holds beside the plan.
std::vector<std::string> plan_notes(const Config& config, const StepPlan& plan);

}  // namespace ftrun
