#include "sim/step_trace.h"

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

std::string lane_title(const Program& program, Lane lane) {
  const ProgramGroup* const group = group_on(program, lane);
  if (group == nullptr) return std::string(lane_name(lane));
  return group->ranks.is_link() ? group->ranks.name() : group->ranks.label;
}

}  // namespace

void StepTrace::add_event(const std::string& event) {
  if (!events_.empty()) events_ += ",\n";
  events_ += event;
}

void StepTrace::add(int rank, const Program& program, const Instr& instr, Picoseconds begin,
                    Picoseconds end) {
  if (begin == end) return;
  const auto lane = static_cast<int>(instr.lane);
  if (named_.emplace(rank, -1).second)
    add_event(name_event("process_name", rank, 0, cat("predicted rank ", rank)));
  if (named_.emplace(rank, lane).second)
    add_event(name_event("thread_name", rank, lane, lane_title(program, instr.lane)));
  add_event(cat(R"({"name":")", instr_label(instr), R"(","ph":"X","pid":)", rank, R"(,"tid":)",
                lane, R"(,"ts":)", microseconds(begin), R"(,"dur":)", microseconds(end - begin),
                R"(,"args":{"bytes":)", total_bytes(instr.reads) + total_bytes(instr.writes),
                "}}"));
}

std::string StepTrace::text() const {
  return cat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", events_, "\n]}\n");
}

}  // namespace ftrun
