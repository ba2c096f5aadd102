#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/trace_events.h"
#include "sim/step_time.h"

namespace ftrun {

/// Names a lane for readers: "compute", "to device", "data", "pipeline@3>7".
std::string lane_title(const Program& program, Lane lane);

/// Adds a process with this name, a thread for each lane that has work, and an event for each
/// instruction. Instructions that take no time are left out. Predicted and measured steps use the
/// same names for threads and events.
void add_instr_events(TraceEvents& events, int64_t process, const std::string& name,
                      const Program& program, std::span<const RecordedInstr> instrs);

/// Adds the predicted step of a rank, as the process with the rank's number.
void add_predicted_rank(TraceEvents& events, const RecordedRank& rank);

/// Formats the predicted step of all recorded ranks as a trace.
std::string step_trace_text(const StepRecord& record);

}  // namespace ftrun
