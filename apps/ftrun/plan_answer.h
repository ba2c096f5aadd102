#pragma once

#include <nlohmann/json.hpp>

#include "program/memory_plan.h"
#include "program/traffic.h"

namespace ftrun {

/// What a rank allocates, by tier and category, in bytes; tiers that are not used are left out.
nlohmann::ordered_json memory_json(const MemoryPlan& memory);
/// What a rank sends in a step, by collective, in bytes.
nlohmann::ordered_json traffic_json(const Traffic& traffic);

}  // namespace ftrun
