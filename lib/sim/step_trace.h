#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/trace_events.h"
#include "sim/step_time.h"

namespace ftrun {

/// Names a lane for readers: "compute", "to device", "dp_shard", "pp@3>7".
std::string lane_title(const Program& program, Lane lane);

/// Adds a process of this name, a thread for each lane that does something, and an event for each
/// instruction. Instructions that take no time are left out. Predicted and measured steps have the
/// same names.
void add_instr_events(TraceEvents& events, int64_t process, const std::string& name,
                      const Program& program, std::span<const RecordedInstr> instrs);

/// Adds what a rank does in a predicted step: the process of its number.
void add_predicted_rank(TraceEvents& events, const RecordedRank& rank);

/// Writes what ranks do in a predicted step as a trace.
std::string step_trace_text(const StepRecord& record);

}  // namespace ftrun
