#pragma once

#include <cstdint>
#include <string>

#include "config_source.h"
#include "program/step_plan.h"
#include "sim/rank_class_plans.h"

namespace ftrun {

/// Adds --nodes to a command that starts no ranks.
void add_nodes_option(CLI::App& command, int64_t& nodes);

/// Returns a warning if tensor-parallel ranks are on different nodes when the ranks are placed in
/// order on `nodes` nodes; "" otherwise. Throws Error(kUsage) if the number of nodes does not
/// divide the ranks.
std::string node_traffic_warning_of(const Config& config, const RankClassPlans& class_plans,
                                    int64_t nodes);
/// Returns the same warning, computed from the plan of rank 0.
std::string node_traffic_warning_of(const LoadedConfig& loaded, const StepPlan& plan,
                                    int64_t nodes);

}  // namespace ftrun
