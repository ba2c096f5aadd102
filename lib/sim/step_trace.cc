#include "sim/step_trace.h"

#include <set>

#include "base/error.h"

namespace ftrun {

std::string lane_title(const Program& program, Lane lane) {
  const ProgramGroup* const group = group_of_lane(program, lane);
  if (group == nullptr) return std::string(lane_name(lane));
  return group->members.is_link() ? group->members.name() : group->members.label;
}

/// Adds texts without JSON escapes: labels and names of lanes and axes contain neither quotes nor
/// backslashes.
void add_instr_events(TraceEvents& events, int64_t process, const std::string& name,
                      const Program& program, std::span<const TimelineInstr> instrs) {
  events.name_process(process, name);
  std::set<Lane> named;
  for (const TimelineInstr& one : instrs) {
    if (one.begin == one.end) continue;
    const Instr& instr = *one.instr;
    const auto lane = static_cast<int64_t>(instr.lane);
    if (named.insert(instr.lane).second)
      events.name_thread(process, lane, lane_title(program, instr.lane));
    events.add({.name = instr_label(instr),
                .process = process,
                .thread = lane,
                .begin_picoseconds = one.begin,
                .end_picoseconds = one.end,
                .bytes = total_bytes(instr.reads) + total_bytes(instr.writes)});
  }
}

void add_predicted_rank(TraceEvents& events, const RankTimeline& rank) {
  add_instr_events(events, rank.rank, cat("predicted rank ", rank.rank), *rank.program,
                   rank.instrs);
}

std::string step_trace_text(const StepTimeline& timeline) {
  TraceEvents events;
  for (const RankTimeline& rank : timeline.ranks) add_predicted_rank(events, rank);
  return trace_text(events.text());
}

}  // namespace ftrun
