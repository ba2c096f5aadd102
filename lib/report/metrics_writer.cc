#include "report/metrics_writer.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace ftrun {
namespace {

bool is_before_step(std::string_view line, int64_t first_step) {
  const auto metrics = parse_metrics_line(line);
  return metrics && metrics->step < first_step;
}

/// Returns the lines of `text` of steps before `first_step`.
std::string lines_before_step(std::string_view text, int64_t first_step) {
  std::string lines;
  lines.reserve(text.size());
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (is_before_step(line, first_step)) lines.append(line).append("\n");
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return lines;
}

/// Removes the lines of `first_step` and later ones from a file, and returns its path.
std::string remove_later_lines(const std::string& path, int64_t first_step, FileSystem& files) {
  if (!files.exists(path)) return path;
  const std::string old_text = read_file(path, INT64_MAX);
  const std::string new_text = lines_before_step(old_text, first_step);
  // The texts also differ if the last line lacks its line end; writing `new_text` adds it.
  if (new_text != old_text) write_file_atomic(files, path, new_text);
  return path;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path, int64_t first_step, FileSystem& files)
    : last_step_(std::max<int64_t>(first_step - 1, 0)),
      file_(remove_later_lines(path, first_step, files)) {}

void MetricsWriter::write(const StepMetrics& metrics) {
  append(metrics_lines(metrics), metrics.step);
}

void MetricsWriter::write_line(const std::string& line) {
  append(line + "\n", last_step_);
}

void MetricsWriter::append(const std::string& lines, int64_t step) {
  if (file_.reopen_if_lost())
    log_warning(cat(file_.path(),
                    ": was removed or replaced while this run writes it; the run writes a new "
                    "file, without the lines up to step ",
                    last_step_));
  file_.append(lines);
  last_step_ = step;
}

}  // namespace ftrun
