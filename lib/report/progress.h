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

/// ProgressState is what a progress line shows.
struct ProgressState {
  StepMetrics metrics;
  /// 0 when it is not known.
  int64_t total_steps = 0;
  std::optional<double> seconds_left;
};

/// ProgressStyle says how a live line looks.
struct ProgressStyle {
  /// Columns of the terminal; the line stays below that many, so that it never wraps.
  int width = 80;
  bool colour = false;
  /// The bar is of block characters (UTF-8) in place of '#'.
  bool unicode = false;
};

/// Writes the line for a terminal, without line end:
///   step 12/60 [####----------------] 20%  loss 3.2145  1234 tokens/s  4m 05s left
/// On a narrow terminal its parts are dropped in this order: bar, validation, percent, tokens/s,
/// time left, loss.
std::string live_progress_text(const ProgressState& state, const ProgressStyle& style);

/// Writes the line for a log file or pipe, without line end:
///   step 12/60  loss 3.2145  grad_norm 1.2500  lr 1e-05  1234 tokens/s  0.41 s/step  4m 05s left
std::string plain_progress_text(const ProgressState& state);

struct ProgressOptions {
  /// A single line is redrawn, in place of many lines.
  bool live = false;
  bool colour = false;
  bool unicode = false;
  /// The steps between two lines without `live`; the first, the last, validations, skipped steps
  /// and losses that are not finite always have one.
  int64_t every = 10;
  /// The least seconds between two drawings with `live`.
  double seconds_between = 0.1;
  /// Columns of the terminal now (it may be resized).
  std::function<int()> width = [] { return 80; };
  /// A clock in seconds; for tests.
  std::function<double()> clock;
};

/// Chooses the options for a file descriptor: live on a terminal (but TERM=dumb), coloured there
/// unless NO_COLOR is set and not empty, block characters when the locale's encoding is UTF-8.
ProgressOptions progress_options_for(int fd, int64_t every);

/// ProgressLine shows a run's progress on a stream. Not for several threads at once.
class ProgressLine {
 public:
  /// Prints to `out`; `total_steps` is the number of the last step, 0 if it is not known.
  ProgressLine(std::ostream& out, ProgressOptions options, int64_t total_steps);
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const StepMetrics& metrics);
  /// Prints a line of its own, above a live one.
  void print(std::string_view line);
  /// Ends a live line, so that the next output starts on a new line. May be called again.
  void finish();

 private:
  std::optional<double> seconds_left(int64_t step) const;
  void note_duration(const StepMetrics& metrics);
  void show_live(const ProgressState& state, bool important);
  void draw(const std::string& text);

  std::ostream& out_;
  ProgressOptions options_;
  int64_t total_steps_;
  bool first_ = true;
  /// Durations of the latest steps; the first step's, which is longer, goes when a second comes.
  std::deque<double> durations_;
  int64_t steps_timed_ = 0;
  bool only_warm_up_ = false;
  double drawn_at_ = 0;
  /// The line that the terminal shows now, "" when it shows no live line.
  std::string drawn_;
};

}  // namespace ftrun
