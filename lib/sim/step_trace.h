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
                      const Program& program, std::span<const TimelineInstr> instrs);

/// Adds the predicted step of a rank, as the process with the rank's number.
void add_predicted_rank(TraceEvents& events, const RankTimeline& rank);

/// Formats the predicted step of all ranks of a timeline as a trace.
std::string step_trace_text(const StepTimeline& timeline);

}  // namespace ftrun
