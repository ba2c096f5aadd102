#include "report/trace_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/trace_events.h"
#include "report/json_depth.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

/// Reads the events of a trace file that ftrun wrote.
Json read_events(const std::string& path) {
  const std::string text = read_file(path);
  Json trace;
  if (!nests_deeper_than(text, kMaxJsonDepth))
    trace = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array())
    throw Error(ExitCode::kUsage,
                cat(path, ": is not a trace that ftrun wrote, so it is not overwritten"),
                "move it away");
  return trace["traceEvents"];
}

/// Returns the step in which an event was measured; 0 for a predicted event.
int64_t step_of(const Json& event) {
  if (!event.is_object() || !event.contains("args") || !event["args"].is_object()) return 0;
  const Json& args = event["args"];
  return args.contains("step") && args["step"].is_number_integer() ? args["step"].get<int64_t>()
                                                                   : 0;
}

/// Formats the events that were measured before `first_step`; each step is shown as a separate
/// process.
std::string kept_events(const Json& events, int64_t first_step) {
  std::map<std::string, int64_t> processes;
  std::string kept;
  for (Json event : events) {
    if (step_of(event) <= 0 || step_of(event) >= first_step || !event.contains("pid")) continue;
    const auto next = static_cast<int64_t>(processes.size());
    event["pid"] =
        kMaxNewProcesses + processes.try_emplace(event["pid"].dump(), next).first->second;
    kept += (kept.empty() ? "" : ",\n") + event.dump();
  }
  return kept;
}

}  // namespace

TraceFile::TraceFile(std::string path, int64_t first_step) : path_(std::move(path)) {
  if (posix_files().exists(path_)) measured_events_ = kept_events(read_events(path_), first_step);
}

void TraceFile::add(const TracedStep& step) {
  TraceEvents measured_trace, all_events;
  measured_trace.add(measured_events_);
  measured_trace.add(step.measured_events);
  all_events.add(step.predicted_events);
  all_events.add(measured_trace.text());
  write_file_atomic(
      posix_files(), path_,
      trace_text(all_events.text(),
                 Json(step.notes).dump(-1, ' ', false, Json::error_handler_t::replace)));
  measured_events_ = measured_trace.text();
}

}  // namespace ftrun
