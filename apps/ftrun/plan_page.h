#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config.h"
#include "config_source.h"
#include "plan_time.h"
#include "sim/rank_class_plans.h"
#include "sim/step_time.h"

namespace ftrun {

/// PlanPage is the content of the HTML page that `ftrun plan --html` writes.
struct PlanPage {
  /// Lines of text: what was planned, and how long a step takes.
  std::vector<std::string> facts;
  std::vector<std::string> warnings;
  /// The bytes of a device and of main memory that a rank may use; 0: not known.
  int64_t device_memory_bytes = 0;
  int64_t host_memory_bytes = 0;
  /// The result of search_json(), with additional "lines" about the end of the search; null without
  /// a search.
  nlohmann::ordered_json search;
};

/// Checks before any computation that the page can be written. Throws Error(kUsage) for an invalid
/// name, or if a file other than such a page exists there, and Error(kEnvironment) if this user may
/// not write there.
void check_plan_page_path(const std::string& path);

/// Makes the first part of a plan's page: what was planned, for which machine, with which
/// assumptions, and `time`, the line about the time of a step; and a warning if tensor-parallel
/// ranks are on different nodes.
PlanPage make_plan_page(const Config& config, const RankClassPlans& class_plans,
                        const ConfigSource& source, const RequestedMachine& requested,
                        int64_t nodes, const std::string& time);

/// Writes the HTML page of a plan, which needs no other file and no network, and prints its path.
/// For the lowest rank of each pipeline stage (at most 16 stages) it shows the step's time by part,
/// and the lanes and the memory by category over the step. The size of the page is bounded, however
/// long the program is (make_step_lanes()). `config` is resolved, and `timeline` is the predicted
/// step of `class_plans`. Throws the errors of write_file_atomic().
void write_plan_page(const std::string& path, PlanPage page, const Config& config,
                     const RankClassPlans& class_plans, const StepTimeline& timeline);

}  // namespace ftrun
