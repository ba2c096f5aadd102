#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "base/append_file.h"
#include "report/step_metrics.h"

namespace ftrun {

/// MetricsWriter writes metrics.jsonl: one JSON object per line, one line per step and one per
/// evaluation. When write() returns, the kernel has the line.
class MetricsWriter {
 public:
  /// Opens or makes the file for a run whose first step will be `first_step`: lines of that step
  /// and later ones, which a resumed run will write again, are removed, and so is a line that a
  /// crash left incomplete; earlier lines are unchanged. The file is replaced atomically, and only
  /// when a line must be removed. Error(kEnvironment).
  MetricsWriter(const std::string& path, int64_t first_step, FileSystem& files = posix_files());

  void write(const StepMetrics& metrics);
  /// Writes a line of another kind that has its own field "step"; `line` has no line end.
  void write_line(const std::string& line);

 private:
  /// Appends lines; begins the file again, with a warning, if it was removed meanwhile.
  void append(const std::string& lines, int64_t step);

  int64_t last_step_ = 0;
  AppendFile file_;
};

}  // namespace ftrun
