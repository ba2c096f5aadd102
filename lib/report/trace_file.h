#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ftrun {

/// TracedStep holds a measured step and the predicted step, both as texts of trace events
/// (base/trace_events.h).
struct TracedStep {
  int64_t step = 0;
  /// Events that are marked with their step.
  std::string measured_events;
  std::string predicted_events;
  /// Notes for a person who reads the trace, by topic.
  std::map<std::string, std::string> notes;
};

/// TraceFile is a run's trace.json, in the format of Chrome's and Perfetto's viewers: the predicted
/// step and all measured ones, each from time 0.
class TraceFile {
 public:
  /// Keeps the events of steps before `first_step` from earlier starts of the run. Later steps will
  /// run again, so their events are dropped. Throws Error(kUsage) for a file that is not such a
  /// trace, and leaves it unchanged.
  TraceFile(std::string path, int64_t first_step);

  /// Adds a step. The file is replaced as a whole, so that it holds all steps that were added
  /// before, however the run ends. Throws Error(kEnvironment).
  void add(const TracedStep& step);

 private:
  const std::string path_;
  /// The events of all measured steps.
  std::string measured_events_;
};

}  // namespace ftrun
