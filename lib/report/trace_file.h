#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ftrun {

/// TracedStep is a measured step beside the predicted one, as texts of events
/// (base/trace_events.h).
struct TracedStep {
  int64_t step = 0;
  /// Events that are marked with their step.
  std::string measured;
  std::string predicted;
  /// Notes for the reader of the trace, by topic.
  std::map<std::string, std::string> notes;
};

/// TraceFile is a run's trace.json, in the format of Chrome's and Perfetto's viewers: the predicted
/// step and all measured ones, each from time 0.
class TraceFile {
 public:
  /// Keeps what an earlier start of the run measured of steps before `first_step`; later ones are
  /// run again. Error(kUsage) for a file that is no such trace, which stays as it is.
  TraceFile(std::string path, int64_t first_step);

  /// Adds a step. The file is replaced as a whole: whatever kills the run, it holds all steps that
  /// were added before. Error(kEnvironment).
  void add(const TracedStep& step);

 private:
  const std::string path_;
  /// Events of all measured steps.
  std::string measured_;
};

}  // namespace ftrun
