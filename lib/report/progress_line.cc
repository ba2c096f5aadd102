#include "report/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr int kLongestBar = 30;
constexpr int kShortestBar = 8;
constexpr size_t kRememberedSteps = 20;

constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kRed = "\x1b[31m";
constexpr std::string_view kCyan = "\x1b[36m";
constexpr std::string_view kPlain = "\x1b[0m";
/// Carriage return, then erase to the end of the line.
constexpr std::string_view kClear = "\r\x1b[K";

/// LinePart is a part of the live line. If the line is too long, the part with the lowest
/// `drop_order` is dropped first.
struct LinePart {
  std::string text;
  int drop_order = 0;
  std::string_view color;
  /// Says whether the part belongs to the bar in front of it, if there is one.
  bool follows_bar = false;
};

std::string loss_text(double loss) {
  return std::abs(loss) < 1e5 || !std::isfinite(loss) ? format_number("%.4f", loss)
                                                      : format_number("%.4e", loss);
}

/// Returns the text "validation loss 3.7125 (perplexity 40.96, accuracy 31.2 %)".
std::string evaluation_text(const EvaluationResult& evaluation) {
  if (!evaluation.has_value()) return cat(evaluation.set, " has no token that counts");
  std::string text = cat(evaluation.set, " loss ", loss_text(evaluation.loss), " (perplexity ",
                         format_number("%.4g", evaluation.perplexity()));
  if (evaluation.accuracy) text += cat(", accuracy ", percent_text(*evaluation.accuracy, 1));
  return text + ")";
}

std::string rate_text(double tokens_per_second) {
  // Casting a number that does not fit in int64_t would be undefined behavior.
  if (!(std::abs(tokens_per_second) < 1e18)) return format_number("%g tokens/s", tokens_per_second);
  return human_count(std::llround(tokens_per_second)) + " tokens/s";
}

std::string step_text(const ProgressState& state) {
  const std::string step = cat("step ", state.metrics.step);
  return state.total_steps > 0 ? cat(step, "/", state.total_steps) : step;
}

double done_fraction(const ProgressState& state) {
  if (state.total_steps <= 0) return 0;
  return std::clamp(
      static_cast<double>(state.metrics.step) / static_cast<double>(state.total_steps), 0.0, 1.0);
}

std::vector<LinePart> live_parts(const ProgressState& state) {
  const StepMetrics& m = state.metrics;
  std::vector<LinePart> parts{{step_text(state), 9, {}}};
  if (state.total_steps > 0)
    parts.push_back({cat(static_cast<int>(done_fraction(state) * 100), "%"), 2, {}, true});
  if (m.trained) {
    parts.push_back({cat("loss ", loss_text(m.loss)), 8, std::isfinite(m.loss) ? "" : kRed});
    parts.push_back({rate_text(m.tokens_per_second), 3, {}});
  }
  if (state.seconds_left) parts.push_back({human_seconds(*state.seconds_left) + " left", 4, {}});
  if (!m.evaluations.empty())
    parts.push_back({cat(m.evaluations[0].set, " ", loss_text(m.evaluations[0].loss)), 1, kCyan});
  return parts;
}

size_t total_columns(const std::vector<LinePart>& parts) {
  size_t sum = 2 * (parts.size() - 1);
  for (const LinePart& part : parts) sum += text_columns(part.text);
  return sum;
}

void drop_until_it_fits(std::vector<LinePart>& parts, size_t limit) {
  const auto goes_first = [](const LinePart& a, const LinePart& b) {
    return a.drop_order < b.drop_order;
  };
  while (parts.size() > 1 && total_columns(parts) > limit)
    parts.erase(std::min_element(parts.begin(), parts.end(), goes_first));
  // The text is ASCII, so each byte is one column.
  if (total_columns(parts) > limit) parts.front().text.resize(limit);
}

std::string repeated(std::string_view glyph, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += glyph;
  return out;
}

std::string bar_text(double done_share, int cells, const ProgressStyle& style) {
  const int filled_cells = static_cast<int>(done_share * cells);
  const std::string_view filled_glyph = style.unicode ? "█" : "#";
  const std::string_view empty_glyph = style.unicode ? "░" : "-";
  const std::string filled = repeated(filled_glyph, filled_cells);
  const std::string inner = style.color ? cat(kGreen, filled, kPlain) : filled;
  return cat("[", inner, repeated(empty_glyph, cells - filled_cells), "]");
}

bool locale_is_utf8() {
  // Without setlocale() the C library uses the locale "C". So the variables are read here, in the
  // order in which setlocale() would read them.
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view text = value;
    return text.find("UTF-8") != text.npos || text.find("utf8") != text.npos;
  }
  return false;
}

bool is_variable_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

double steady_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

std::string live_progress_text(const ProgressState& state, const ProgressStyle& style) {
  // The last column stays free, because on some terminals a line that fills it wraps.
  const auto limit = static_cast<size_t>(std::max(style.width - 1, 1));
  std::vector<LinePart> parts = live_parts(state);
  const size_t all_parts = parts.size();
  drop_until_it_fits(parts, limit);
  // The bar's brackets and a space take three columns. If a part was dropped, there is no bar
  // either.
  const int spare =
      parts.size() < all_parts ? 0 : static_cast<int>(limit - total_columns(parts)) - 3;
  std::string line;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LinePart& part = parts[i];
    const bool bar = i == 0 && state.total_steps > 0 && spare >= kShortestBar;
    if (i > 0) line += part.follows_bar && line.ends_with(']') ? " " : "  ";
    line += style.color && !part.color.empty() ? cat(part.color, part.text, kPlain) : part.text;
    if (bar) line += cat(" ", bar_text(done_fraction(state), std::min(spare, kLongestBar), style));
  }
  return line;
}

std::string plain_progress_text(const ProgressState& state) {
  const StepMetrics& m = state.metrics;
  std::vector<std::string> parts{step_text(state)};
  if (m.trained) {
    parts.push_back(cat("loss ", loss_text(m.loss)));
    parts.push_back(cat("grad_norm ", loss_text(m.gradient_norm)));
    parts.push_back(cat("lr ", format_number("%.4g", m.learning_rate)));
    if (m.loss_scale) parts.push_back(cat("loss_scale ", format_number("%g", *m.loss_scale)));
    if (m.skipped) parts.emplace_back("SKIPPED");
    parts.push_back(rate_text(m.tokens_per_second));
    parts.push_back(format_number("%.2f s/step", m.step_seconds));
  }
  for (const EvaluationResult& evaluation : m.evaluations)
    parts.push_back(evaluation_text(evaluation));
  if (state.seconds_left) parts.push_back(human_seconds(*state.seconds_left) + " left");
  return join(parts, "  ");
}

ProgressOptions progress_options_for(int fd, int64_t steps_between) {
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  ProgressOptions options;
  options.live = ::isatty(fd) == 1 && !dumb;
  options.color = options.live && !is_variable_set("NO_COLOR");
  options.unicode = options.live && locale_is_utf8();
  options.steps_between = steps_between;
  options.width = [fd] {
    winsize size{};
    return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? static_cast<int>(size.ws_col)
                                                                  : 80;
  };
  return options;
}

ProgressLine::ProgressLine(std::ostream& out, ProgressOptions options, int64_t total_steps)
    : out_(out), options_(std::move(options)), total_steps_(total_steps) {
  if (!options_.clock) options_.clock = steady_seconds;
  options_.steps_between = std::max<int64_t>(options_.steps_between, 1);
}

void ProgressLine::record_duration(const StepMetrics& metrics) {
  // The first step is slower because of warm-up. Its duration is used only until there is another
  // one.
  if (std::exchange(has_only_warm_up_, false)) durations_.clear();
  has_only_warm_up_ = steps_timed_++ == 0;
  durations_.push_back(metrics.step_seconds);
  if (durations_.size() > kRememberedSteps) durations_.pop_front();
}

std::optional<double> ProgressLine::seconds_left(int64_t step) const {
  if (total_steps_ <= 0 || durations_.empty() || step >= total_steps_) return std::nullopt;
  const double mean = std::accumulate(durations_.begin(), durations_.end(), 0.0) /
                      static_cast<double>(durations_.size());
  if (!std::isfinite(mean)) return std::nullopt;
  return mean * static_cast<double>(total_steps_ - step);
}

void ProgressLine::show(const StepMetrics& metrics) {
  if (metrics.trained) record_duration(metrics);
  const ProgressState state{metrics, total_steps_, seconds_left(metrics.step)};
  const bool important = is_first_ || !metrics.trained || metrics.skipped ||
                         !metrics.evaluations.empty() || !std::isfinite(metrics.loss) ||
                         metrics.step == total_steps_;
  is_first_ = false;
  if (options_.live) return show_live(state, important);
  if (important || metrics.step % options_.steps_between == 0)
    out_ << plain_progress_text(state) << "\n" << std::flush;
}

void ProgressLine::show_live(const ProgressState& state, bool important) {
  // Evaluations and skipped steps also get a permanent line above the live one.
  if (!state.metrics.evaluations.empty() || state.metrics.skipped)
    print(plain_progress_text(state));
  const double now = options_.clock();
  if (!important && now - last_draw_seconds_ < options_.seconds_between) return;
  last_draw_seconds_ = now;
  draw(live_progress_text(state, {options_.width(), options_.color, options_.unicode}));
}

void ProgressLine::draw(const std::string& text) {
  out_ << kClear << text << std::flush;
  shown_line_ = text;
}

void ProgressLine::print(std::string_view line) {
  if (shown_line_.empty()) {
    out_ << line << "\n" << std::flush;
    return;
  }
  out_ << kClear << line << "\n" << shown_line_ << std::flush;
}

void ProgressLine::finish() {
  if (shown_line_.empty()) return;
  out_ << "\n" << std::flush;
  shown_line_.clear();
}

}  // namespace ftrun
