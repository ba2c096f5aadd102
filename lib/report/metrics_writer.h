#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "base/append_file.h"
#include "report/step_metrics.h"

namespace ftrun {

/// metrics.jsonl: one JSON object a line, one line a step and one an evaluation, each in the
/// kernel's hands when write() returns.
class MetricsWriter {
 public:
  /// Opens or makes the file for a run whose first step will be `first_step`: lines of that step
  /// and later ones, which a resumed run will write anew, are removed, and so is what a crash tore;
  /// earlier lines stay byte for byte. The file is replaced atomically, and only when something is
  /// to be removed. Error(kEnvironment).
  MetricsWriter(const std::string& path, int64_t first_step, FileSystem& files = posix_files());

  void write(const StepMetrics& metrics);
  /// A line of another kind with a step of its own ("step": ...), without its end.
  void write_line(const std::string& line);

  /// Lines that the constructor removed.
  int64_t removed_lines() const { return removed_lines_; }

 private:
  /// Begins the file anew, with a warning, where it was removed meanwhile.
  void append(const std::string& lines, int64_t step);

  int64_t removed_lines_ = 0;
  int64_t last_step_ = 0;
  AppendFile file_;
};

}  // namespace ftrun
