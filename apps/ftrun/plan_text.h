#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "program/memory_plan.h"
#include "program/memory_savings.h"
#include "program/step_plan.h"

namespace ftrun {

/// Describes a rank's memory by tier and category, and the peak of each tier.
std::string memory_plan_text(const MemoryPlan& memory, int64_t parameters);

/// Lists the formulas of all ZeRO stages at this plan's precision and ranks, with and without a
/// master copy, next to the plan's numbers.
std::string state_formula_text(const StepPlan& plan, const MemoryPlan& memory);

std::string savings_text(const std::vector<MemorySaving>& savings);

}  // namespace ftrun
