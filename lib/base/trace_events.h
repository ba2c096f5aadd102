#pragma once

#include <cstdint>
#include <string>

namespace ftrun {

/// TraceEvent is a time span of one thread of one process of a trace. Times are in picoseconds.
struct TraceEvent {
  std::string name;
  int64_t process = 0;
  int64_t thread = 0;
  int64_t begin_picoseconds = 0;
  int64_t end_picoseconds = 0;
  /// Bytes that the event reads and writes.
  int64_t bytes = 0;
};

/// The first process number of events that are copied from the file of an earlier run in the same
/// folder; the processes that a run measures have lower numbers. Viewers read a process number as
/// an unsigned 32-bit integer.
inline constexpr int64_t kMaxNewProcesses = int64_t{1} << 31;

/// TraceEvents collects events as JSON, one per line, in the "Trace Event Format" that Chrome's and
/// Perfetto's viewers read. Names must hold neither quotes nor backslashes.
class TraceEvents {
 public:
  TraceEvents() = default;
  /// Marks every event as belonging to a training step (`args.step`).
  explicit TraceEvents(int64_t step);

  void name_process(int64_t process, const std::string& name);
  void name_thread(int64_t process, int64_t thread, const std::string& name);
  void add(const TraceEvent& event);
  /// Appends the text of other events.
  void add(const std::string& events);
  const std::string& text() const { return text_; }

 private:
  void add_name(const char* what, int64_t process, int64_t thread, const std::string& name);

  /// The beginning of the arguments of each event.
  std::string step_;
  std::string text_;
};

/// Makes a trace file's text from the text of its events. `other_data` is JSON that describes the
/// trace; "" for none.
std::string trace_text(const std::string& events, const std::string& other_data = "");

}  // namespace ftrun
