#pragma once

#include <nlohmann/json.hpp>

#include "program/memory_plan.h"
#include "program/traffic.h"
#include "sim/run_estimate.h"

namespace ftrun {

/// Lists the bytes that a rank allocates, by tier and category, without tiers that are not used.
nlohmann::ordered_json memory_json(const MemoryPlan& memory);
/// Lists the bytes that a rank sends in a step, by collective.
nlohmann::ordered_json traffic_json(const Traffic& traffic);

/// Lists the time of a step and of a run on a machine.
nlohmann::ordered_json time_json(const RunEstimate& run, const StepTime& time,
                                 const Machine& machine);

}  // namespace ftrun
