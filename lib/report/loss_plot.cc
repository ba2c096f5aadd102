#include "report/loss_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

// Room around the axes, in pixels, for labels.
constexpr double kLeft = 64;
constexpr double kRight = 20;
constexpr double kTop = 44;
constexpr double kBottom = 52;

constexpr const char* kStyle = R"(<style>
  .page { fill: #ffffff } .ink { fill: #1f2328 } .grid { stroke: #d0d7de } .axis { stroke: #57606a }
  .train { stroke: #0969da } .validation { stroke: #bc4c00 } .dot { fill: #bc4c00 }
  .bad { fill: #cf222e }
  path { fill: none; stroke-width: 2; stroke-linejoin: round }
  text { font: 12px system-ui, sans-serif } .title { font-size: 14px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .ink { fill: #e6edf3 } .grid { stroke: #30363d }
    .axis { stroke: #8b949e }
    .train { stroke: #58a6ff } .validation { stroke: #f0883e } .dot { fill: #f0883e }
    .bad { fill: #ff7b72 }
  }
</style>
)";

struct Point {
  double step = 0;
  double loss = 0;
};

struct Series {
  std::vector<Point> train;
  std::vector<Point> validation;
};

struct Range {
  double low = 0;
  double high = 1;
};

struct Frame {
  Range steps;
  Range losses;
  double left, right, top, bottom;
  double x(double step) const {
    return left + (right - left) * (step - steps.low) / (steps.high - steps.low);
  }
  double y(double loss) const {
    return bottom - (bottom - top) * (loss - losses.low) / (losses.high - losses.low);
  }
};

/// Beyond this a loss is as good as infinite, and its distance to others would overflow.
constexpr double kLargestLoss = 1e30;

double drawable(double loss) {
  return std::abs(loss) <= kLargestLoss ? loss : std::numeric_limits<double>::quiet_NaN();
}

Series series_of(const std::vector<StepMetrics>& metrics) {
  Series series;
  for (const StepMetrics& m : metrics) {
    const auto step = static_cast<double>(m.step);
    if (m.trained) series.train.push_back({step, drawable(m.loss)});
    if (m.validation_loss) series.validation.push_back({step, drawable(*m.validation_loss)});
  }
  return series;
}

/// At most `limit` points: means over neighbours. A group with a loss that is not finite is not.
std::vector<Point> thinned(const std::vector<Point>& points, size_t limit) {
  if (points.size() <= limit) return points;
  std::vector<Point> out;
  for (size_t group = 0; group < limit; ++group) {
    const size_t begin = points.size() * group / limit;
    const size_t end = points.size() * (group + 1) / limit;
    Point sum;
    for (size_t i = begin; i < end; ++i) {
      sum.step += points[i].step;
      sum.loss += points[i].loss;
    }
    const auto count = static_cast<double>(end - begin);
    out.push_back({sum.step / count, sum.loss / count});
  }
  return out;
}

/// The range of the finite values that `value` takes, with a margin (a share of its size), or wider
/// when it is a single one.
template <typename Value>
Range range_of(const Series& series, double margin, Value value) {
  Range range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const auto* points : {&series.train, &series.validation})
    for (const Point& point : *points) {
      if (!std::isfinite(value(point))) continue;
      range.low = std::min(range.low, value(point));
      range.high = std::max(range.high, value(point));
    }
  if (range.low > range.high) return {};
  const double size = range.high - range.low;
  // Values that differ by their last digits only are one value to an eye, and to the ticks.
  const double magnitude = std::max(std::abs(range.low), std::abs(range.high));
  const bool spread = size > std::max(magnitude * 1e-9, 1e-30);
  const double widened = spread ? size * margin : std::max(magnitude * 0.1, 0.5);
  return {range.low - widened, range.high + widened};
}

/// The largest of 1, 2, 5 times a power of ten that puts at least four steps in `size`.
double tick_step(double size) {
  const double power = std::pow(10, std::floor(std::log10(size / 4)));
  for (const double factor : {5.0, 2.0})
    if (factor * power <= size / 4) return factor * power;
  return power;
}

std::vector<double> ticks_in(const Range& range, double step) {
  std::vector<double> ticks;
  const double first = std::ceil(range.low / step);
  // Bounded: a step too fine for the numbers' own spacing would not advance.
  for (int i = 0; i < 32; ++i) {
    const double tick = (first + i) * step;
    if (tick > range.high) break;
    ticks.push_back(tick);
  }
  return ticks;
}

std::string px(double value) {
  return formatted("%.1f", value);
}

std::string tick_text(double tick, double step) {
  if (std::abs(tick) < step / 2) return "0";
  if (std::abs(tick) >= 1e6 || step < 1e-4) return formatted("%.3g", tick);
  std::array<char, 64> buffer{};
  const int digits = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, tick);
  return buffer.data();
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (static_cast<unsigned char>(c) >= ' ')
      out += c;
  }
  return out;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text,
                    const char* kind = "ink") {
  return cat("<text class=\"", kind, "\" x=\"", px(x), "\" y=\"", px(y), "\" text-anchor=\"",
             anchor, "\">", escaped(text), "</text>\n");
}

std::string line(double x1, double y1, double x2, double y2, const char* kind) {
  return cat("<line class=\"", kind, "\" x1=\"", px(x1), "\" y1=\"", px(y1), "\" x2=\"", px(x2),
             "\" y2=\"", px(y2), "\"/>\n");
}

std::string axes(const Frame& frame) {
  std::string out;
  const double loss_step = tick_step(frame.losses.high - frame.losses.low);
  for (const double tick : ticks_in(frame.losses, loss_step)) {
    out += line(frame.left, frame.y(tick), frame.right, frame.y(tick), "grid");
    out += text_at(frame.left - 8, frame.y(tick) + 4, "end", tick_text(tick, loss_step));
  }
  const double step_step = std::max(1.0, tick_step(frame.steps.high - frame.steps.low));
  for (const double tick : ticks_in(frame.steps, step_step)) {
    out += line(frame.x(tick), frame.bottom, frame.x(tick), frame.bottom + 5, "axis");
    out += text_at(frame.x(tick), frame.bottom + 19, "middle", tick_text(tick, step_step));
  }
  out += line(frame.left, frame.bottom, frame.right, frame.bottom, "axis");
  out += line(frame.left, frame.top, frame.left, frame.bottom, "axis");
  out += text_at((frame.left + frame.right) / 2, frame.bottom + 40, "middle", "step");
  const double middle = (frame.top + frame.bottom) / 2;
  out += cat("<text class=\"ink\" text-anchor=\"middle\" transform=\"translate(16 ", px(middle),
             ") rotate(-90)\">loss</text>\n");
  return out;
}

/// A path through the points, lifted where one is not finite; a lone point becomes a dot-long line.
std::string path_of(const std::vector<Point>& points, const Frame& frame, const char* attributes) {
  std::string d;
  bool drawing = false;
  for (size_t i = 0; i < points.size(); ++i) {
    const bool finite = std::isfinite(points[i].loss);
    if (finite) {
      const std::string at = cat(px(frame.x(points[i].step)), " ", px(frame.y(points[i].loss)));
      d += cat(d.empty() ? "" : " ", drawing ? "L" : "M", at);
      const bool alone = !drawing && (i + 1 == points.size() || !std::isfinite(points[i + 1].loss));
      if (alone) d += " h1";
    }
    drawing = finite;
  }
  return d.empty() ? "" : cat("<path ", attributes, " d=\"", d, "\"/>\n");
}

std::string marks_of(const std::vector<Point>& points, const Frame& frame) {
  std::string out;
  for (const Point& point : points) {
    if (std::isfinite(point.loss)) continue;
    const double x = frame.x(point.step);
    out += cat("<polygon class=\"bad\" points=\"", px(x - 4), ",", px(frame.top), " ", px(x + 4),
               ",", px(frame.top), " ", px(x), ",", px(frame.top + 8), "\"/>\n");
  }
  return out;
}

std::string dots_of(const std::vector<Point>& points, const Frame& frame) {
  std::string out;
  for (const Point& point : points)
    if (std::isfinite(point.loss))
      out += cat("<circle class=\"dot\" cx=\"", px(frame.x(point.step)), "\" cy=\"",
                 px(frame.y(point.loss)), "\" r=\"3\"/>\n");
  return out;
}

bool any_not_finite(const std::vector<Point>& points) {
  return std::any_of(points.begin(), points.end(),
                     [](const Point& point) { return !std::isfinite(point.loss); });
}

std::string legend(const Series& series, double right, double y) {
  std::string out;
  double x = right;
  if (any_not_finite(series.train) || any_not_finite(series.validation)) {
    x -= 74;
    out += cat("<polygon class=\"bad\" points=\"", px(x), ",", px(y - 8), " ", px(x + 8), ",",
               px(y - 8), " ", px(x + 4), ",", px(y), "\"/>\n");
    out += text_at(x + 14, y, "start", "not finite");
    x -= 12;
  }
  if (!series.validation.empty()) {
    x -= 88;
    out += cat("<path class=\"validation\" stroke-dasharray=\"5 3\" d=\"M", px(x), " ", px(y - 4),
               " h24\"/>\n");
    out += text_at(x + 30, y, "start", "validation");
    x -= 12;
  }
  x -= 84;
  out += cat("<path class=\"train\" d=\"M", px(x), " ", px(y - 4), " h24\"/>\n");
  return out + text_at(x + 30, y, "start", "training");
}

Frame frame_of(const Series& series, const LossPlotOptions& options) {
  return {range_of(series, 0, [](const Point& p) { return p.step; }),
          range_of(series, 0.05, [](const Point& p) { return p.loss; }),
          kLeft,
          options.width - kRight,
          kTop,
          options.height - kBottom};
}

std::string svg_start(const LossPlotOptions& options) {
  return cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", options.width, " ",
             options.height, "\" width=\"", options.width, "\" height=\"", options.height,
             "\" role=\"img\">\n<title>", escaped(options.title), "</title>\n", kStyle,
             "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n");
}

}  // namespace

std::string loss_plot_svg(const std::vector<StepMetrics>& metrics, const LossPlotOptions& options) {
  Series series = series_of(metrics);
  const Frame frame = frame_of(series, options);
  const std::vector<Point> all = series.train;
  series.train = thinned(all, static_cast<size_t>(std::max(1.0, frame.right - frame.left)));
  std::string out = svg_start(options);
  out += text_at(frame.left, 24, "start", options.title, "ink title");
  out += legend(series, frame.right, 24);
  out += axes(frame);
  out += path_of(series.train, frame, "class=\"train\"");
  out += path_of(series.validation, frame, "class=\"validation\" stroke-dasharray=\"5 3\"");
  out += dots_of(series.validation, frame);
  out += marks_of(series.train, frame) + marks_of(series.validation, frame);
  if (all.empty() && series.validation.empty())
    out += text_at((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "middle",
                   "no step has been made yet");
  return out + "</svg>\n";
}

std::string render_loss_plot_svg(const std::string& metrics_path, const LossPlotOptions& options) {
  return loss_plot_svg(read_metrics(metrics_path), options);
}

}  // namespace ftrun
