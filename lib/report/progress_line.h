#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "report/step_metrics.h"

namespace ftrun {

/// ProgressState holds the values that a progress line shows.
struct ProgressState {
  StepMetrics metrics;
  /// The number of steps of the run; 0 when it is not known.
  int64_t total_steps = 0;
  std::optional<double> seconds_left;
};

/// ProgressStyle holds the appearance of a live line.
struct ProgressStyle {
  /// The number of columns of the terminal; the line stays shorter, so that it never wraps.
  int width = 80;
  bool color = false;
  /// Says whether the bar consists of block characters (UTF-8) instead of '#'.
  bool unicode = false;
};

/// Returns the line for a terminal, without line end:
///   step 12/60 [####----------------] 20%  loss 3.2145  1234 tokens/s  4m 05s left
/// On a narrow terminal its parts are dropped in this order: bar, validation, percent, tokens/s,
/// time left, loss.
std::string live_progress_text(const ProgressState& state, const ProgressStyle& style);

/// Returns the line for a log file or pipe, without line end:
///   step 12/60  loss 3.2145  grad_norm 1.2500  lr 1e-05  1234 tokens/s  0.41 s/step  4m 05s left
std::string plain_progress_text(const ProgressState& state);

struct ProgressOptions {
  /// Says whether a single line is redrawn instead of printing many lines.
  bool live = false;
  bool color = false;
  bool unicode = false;
  /// The number of steps between two lines without `live`; the first and the last step,
  /// validations, skipped steps and losses that are not finite always have a line.
  int64_t steps_between = 10;
  /// The minimum seconds between two redraws of the live line.
  double seconds_between = 0.1;
  /// Returns the current width of the terminal in columns, which changes when it is resized.
  std::function<int()> width = [] { return 80; };
  /// Returns the time in seconds; tests replace it.
  std::function<double()> clock;
};

/// Chooses the options for a file descriptor. A terminal gets a live line (except with TERM=dumb),
/// in color unless NO_COLOR is set and not empty. Block characters are used if the locale's
/// encoding is UTF-8.
ProgressOptions progress_options_for(int fd, int64_t steps_between);

/// ProgressLine shows a run's progress on a stream. Only one thread at a time may use it.
class ProgressLine {
 public:
  /// Prints to `out`; `total_steps` is the number of the last step, 0 if it is not known.
  ProgressLine(std::ostream& out, ProgressOptions options, int64_t total_steps);
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const StepMetrics& metrics);
  /// Prints a separate line, above the live line if there is one.
  void print(std::string_view line);
  /// Ends a live line, so that the next output starts on a new line. May be called again.
  void finish();

 private:
  std::optional<double> seconds_left(int64_t step) const;
  void record_duration(const StepMetrics& metrics);
  void show_live(const ProgressState& state, bool important);
  void draw(const std::string& text);

  std::ostream& out_;
  ProgressOptions options_;
  int64_t total_steps_;
  bool is_first_ = true;
  /// The durations of the latest steps; the first step's, which is longer, is removed when a second
  /// one is added.
  std::deque<double> durations_;
  int64_t steps_timed_ = 0;
  bool has_only_warm_up_ = false;
  double last_draw_seconds_ = 0;
  /// The line that the terminal shows now; "" if it shows none.
  std::string shown_line_;
};

}  // namespace ftrun
