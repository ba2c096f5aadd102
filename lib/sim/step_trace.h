#pragma once

#include <string>

#include "sim/step_time.h"

namespace ftrun {

/// Names a lane for readers: "compute", "to device", "dp_shard", "pp@3>7".
std::string lane_title(const Program& program, Lane lane);

/// Writes what ranks do in a step as the JSON that Chrome's and Perfetto's viewers read: a process
/// for each rank, a thread for each lane, an event for each instruction. Instructions that take no
/// time are left out.
std::string step_trace_text(const StepRecord& record);

}  // namespace ftrun
