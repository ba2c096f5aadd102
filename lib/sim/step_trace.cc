#include "sim/step_trace.h"

#include <set>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr double kPicosecondsPerMicrosecond = 1e6;

std::string microseconds(Picoseconds time) {
  return fixed_text(static_cast<double>(time) / kPicosecondsPerMicrosecond, 6);
}

/// Labels and names of lanes and axes hold neither quotes nor backslashes.
std::string name_event(const char* what, int rank, int lane, const std::string& name) {
  return cat(R"({"name":")", what, R"(","ph":"M","pid":)", rank, R"(,"tid":)", lane,
             R"(,"args":{"name":")", name, R"("}})");
}

/// TraceEvents collects the events of a trace.
class TraceEvents {
 public:
  void add(const std::string& event) {
    if (!text_.empty()) text_ += ",\n";
    text_ += event;
  }
  void add(const RecordedRank& rank) {
    add(name_event("process_name", rank.rank, 0, cat("predicted rank ", rank.rank)));
    std::set<Lane> named;
    for (const RecordedInstr& one : rank.instrs) {
      if (one.begin == one.end) continue;
      const Instr& instr = *one.instr;
      const auto lane = static_cast<int>(instr.lane);
      if (named.insert(instr.lane).second)
        add(name_event("thread_name", rank.rank, lane, lane_title(*rank.program, instr.lane)));
      add(cat(R"({"name":")", instr_label(instr), R"(","ph":"X","pid":)", rank.rank, R"(,"tid":)",
              lane, R"(,"ts":)", microseconds(one.begin), R"(,"dur":)",
              microseconds(one.end - one.begin), R"(,"args":{"bytes":)",
              total_bytes(instr.reads) + total_bytes(instr.writes), "}}"));
    }
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

std::string lane_title(const Program& program, Lane lane) {
  const ProgramGroup* const group = group_on(program, lane);
  if (group == nullptr) return std::string(lane_name(lane));
  return group->ranks.is_link() ? group->ranks.name() : group->ranks.label;
}

std::string step_trace_text(const StepRecord& record) {
  TraceEvents events;
  for (const RecordedRank& rank : record.ranks) events.add(rank);
  return cat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", events.text(), "\n]}\n");
}

}  // namespace ftrun
