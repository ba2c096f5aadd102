#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config.h"
#include "config_source.h"
#include "plan_time.h"
#include "sim/class_plans.h"
#include "sim/step_time.h"

namespace ftrun {

/// PlanPage is the content of the page of `ftrun plan --html`.
struct PlanPage {
  /// Readable lines: what was planned, and how long a step takes.
  std::vector<std::string> facts;
  std::vector<std::string> warnings;
  /// The bytes of a device and of main memory that a rank may use; 0: not known.
  int64_t device_memory = 0;
  int64_t host_memory = 0;
  /// The object of search_json() for a search, with "lines" about its end; null without a search.
  nlohmann::ordered_json search;
};

/// Refuses a page that cannot be written, before anything is computed: throws Error(kUsage) for an
/// invalid name, or if something other than such a page exists there, and Error(kEnvironment) where
/// this user may not write.
void admit_plan_page(const std::string& path);

/// Begins the page of a plan: what was planned, for which machine, with which assumptions, and
/// `time`, the line about the time of a step.
PlanPage begin_plan_page(const Config& config, const ClassPlans& all, const ConfigSource& source,
                         const RequestedMachine& asked, int64_t nodes, const std::string& time);

/// Writes one self-contained HTML page of a plan, which needs no network either: the step's time by
/// part, memory by category and lanes over it, of the lowest rank of each stage (of 16 stages where
/// there are more). Its size is bounded whatever the length of the program (step_lanes()). `config`
/// is resolved, and `record` is of a prediction of `all`. Errors of write_file_atomic().
void write_plan_page(const std::string& path, PlanPage page, const Config& config,
                     const ClassPlans& all, const StepRecord& record);

}  // namespace ftrun
