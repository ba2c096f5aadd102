#pragma once

#include <string>

#include "sim/step_time.h"

namespace ftrun {

/// The name of a lane for people: "compute", "to device", "dp_shard", "pp@3>7".
std::string lane_title(const Program& program, Lane lane);

/// Writes what ranks do in a step as the JSON that Chrome's and Perfetto's viewers read: a process
/// a rank, a thread a lane, an event an instruction. Instructions that take no time are left out.
std::string step_trace_text(const StepRecord& record);

}  // namespace ftrun
