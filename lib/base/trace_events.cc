#include "base/trace_events.h"

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr double kPicosecondsPerMicrosecond = 1e6;

std::string microseconds_text(int64_t picoseconds) {
  return fixed_text(static_cast<double>(picoseconds) / kPicosecondsPerMicrosecond, 6);
}

}  // namespace

TraceEvents::TraceEvents(int64_t step) : step_(cat(R"("step":)", step, ",")) {}

void TraceEvents::add_name(const char* what, int64_t process, int64_t thread,
                           const std::string& name) {
  add(cat(R"({"name":")", what, R"(","ph":"M","pid":)", process, R"(,"tid":)", thread,
          R"(,"args":{)", step_, R"("name":")", name, R"("}})"));
}

void TraceEvents::name_process(int64_t process, const std::string& name) {
  add_name("process_name", process, 0, name);
}

void TraceEvents::name_thread(int64_t process, int64_t thread, const std::string& name) {
  add_name("thread_name", process, thread, name);
}

void TraceEvents::add(const TraceEvent& event) {
  add(cat(R"({"name":")", event.name, R"(","ph":"X","pid":)", event.process, R"(,"tid":)",
          event.thread, R"(,"ts":)", microseconds_text(event.begin_picoseconds), R"(,"dur":)",
          microseconds_text(event.end_picoseconds - event.begin_picoseconds), R"(,"args":{)", step_,
          R"("bytes":)", event.bytes, "}}"));
}

void TraceEvents::add(const std::string& events) {
  if (events.empty()) return;
  if (!text_.empty()) text_ += ",\n";
  text_ += events;
}

std::string trace_text(const std::string& events, const std::string& other_data) {
  return cat("{\"displayTimeUnit\":\"ms\",",
             other_data.empty() ? "" : cat("\"otherData\":", other_data, ","),
             "\"traceEvents\":[\n", events, "\n]}\n");
}

}  // namespace ftrun
