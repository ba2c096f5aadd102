#include <cmath>
#include <limits>

#include "base/text.h"
#include "report/loss_plot.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

constexpr double kPlotNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPlotInfinity = std::numeric_limits<double>::infinity();

StepMetrics with_loss(int64_t step, double loss) {
  StepMetrics m = example_step(step);
  m.loss = loss;
  return m;
}

StepMetrics validation(int64_t step, double loss) {
  StepMetrics m;
  m.step = step;
  m.trained = false;
  m.validation_loss = loss;
  return m;
}

/// Lines of `text` that hold `part`.
std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
  std::vector<std::string> out;
  for (const std::string& line : split(text, '\n'))
    if (line.find(part) != std::string::npos) out.push_back(line);
  return out;
}

using List = std::vector<std::string>;

TEST_CASE("losses are drawn to scale") {
  // The frame is 100 wide and 100 high; losses 1..3 with a margin of a twentieth of their range.
  const LossPlotOptions options{.title = "a <loss> & more", .width = 184, .height = 196};
  StepMetrics last = with_loss(10, 1);
  last.validation_loss = 2;
  const std::string svg = loss_plot_svg({validation(0, 3), with_loss(5, 2), last}, options);
  REQUIRE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 184 196\""));
  REQUIRE(svg.ends_with("</svg>\n"));
  REQUIRE(lines_with(svg, "<title>") == List{"<title>a &lt;loss&gt; &amp; more</title>"});
  const auto paths = lines_with(svg, "<path class=\"train\" d=\"");
  REQUIRE(paths.back() == "<path class=\"train\" d=\"M114.0 94.0 L164.0 139.5\"/>");
  const auto dashed = lines_with(svg, "<path class=\"validation\"");
  REQUIRE(dashed.back() ==
          "<path class=\"validation\" stroke-dasharray=\"5 3\" d=\"M64.0 48.5 L164.0 94.0\"/>");
  REQUIRE(lines_with(svg, "<circle").size() == 2);
  REQUIRE(lines_with(svg, ">training</text>").size() == 1);
  REQUIRE(lines_with(svg, ">validation</text>").size() == 1);
  REQUIRE(lines_with(svg, ">not finite</text>").empty());
  REQUIRE(lines_with(svg, ">step</text>").size() == 1);
  REQUIRE(lines_with(svg, ">loss</text>").size() == 1);
  REQUIRE(lines_with(svg, "prefers-color-scheme: dark").size() == 1);
}

TEST_CASE("axes carry round numbers") {
  const std::string svg = loss_plot_svg({with_loss(1, 2), with_loss(60, 4)});
  for (const char* tick : {"2.0", "2.5", "3.0", "3.5", "4.0", "10", "20", "30", "40", "50", "60"})
    REQUIRE(lines_with(svg, cat(">", tick, "</text>")).size() == 1);
}

TEST_CASE("a loss that is not finite breaks the line and is marked") {
  const LossPlotOptions options{.width = 184, .height = 196};
  const std::string svg = loss_plot_svg({with_loss(0, 1), with_loss(1, 3), with_loss(2, kPlotNan),
                                         with_loss(3, 1), with_loss(4, kPlotInfinity)},
                                        options);
  REQUIRE(lines_with(svg, "<path class=\"train\"").back() ==
          "<path class=\"train\" d=\"M64.0 139.5 L89.0 48.5 M139.0 139.5 h1\"/>");
  // Two steps and the legend's.
  REQUIRE(lines_with(svg, "<polygon class=\"bad\"").size() == 3);
  REQUIRE(lines_with(svg, ">not finite</text>").size() == 1);
}

TEST_CASE("a long run is thinned to a point a pixel, and keeps its mean") {
  std::vector<StepMetrics> metrics;
  for (int64_t step = 0; step < 20000; ++step)
    metrics.push_back(with_loss(step, step % 2 == 0 ? 1 : 3));
  const LossPlotOptions options{.width = 184, .height = 196};
  const auto path = lines_with(loss_plot_svg(metrics, options), "<path class=\"train\"").back();
  const auto points = split(path, 'L');
  REQUIRE(points.size() == 100);
  REQUIRE(points[50].find(" 94.0") != std::string::npos);
  metrics[10001].loss = kPlotNan;
  REQUIRE(lines_with(loss_plot_svg(metrics, options), "<polygon class=\"bad\"").size() == 2);
}

TEST_CASE("any data gives a drawing of numbers") {
  const std::vector<std::vector<StepMetrics>> cases = {
      {},
      {with_loss(1, 2)},
      {with_loss(1, kPlotNan)},
      {with_loss(1, 1e308), with_loss(2, -1e308)},
      {with_loss(1, 1e30), with_loss(2, 1e30)},
      {with_loss(1, 0), with_loss(2, 0)},
      {with_loss(1, 5e-324), with_loss(2, 0)},
      {with_loss(1, 1e15), with_loss(2, 1e15 + 1)},
      {with_loss(-5, 1), with_loss(std::numeric_limits<int64_t>::max() / 8, 2)},
      {validation(0, 3)}};
  for (const auto& metrics : cases) {
    const std::string svg = loss_plot_svg(metrics);
    REQUIRE(svg.ends_with("</svg>\n"));
    REQUIRE(svg.find("nan") == std::string::npos);
    REQUIRE(svg.find("inf") == std::string::npos);
    REQUIRE(svg.size() < 20000);
  }
  REQUIRE(lines_with(loss_plot_svg({}), ">no step has been made yet</text>").size() == 1);
}

TEST_CASE("a plot is drawn from a metrics file, torn lines and all") {
  const TestFolder folder;
  put_file(folder / "metrics.jsonl", metrics_line(with_loss(1, 3)) + "\n{\"step\":2,\"lo\n" +
                                         metrics_line(with_loss(3, 2)) + "\n");
  REQUIRE(render_loss_plot_svg(folder / "metrics.jsonl") ==
          loss_plot_svg({with_loss(1, 3), with_loss(3, 2)}));
  const Error error = error_of([&] { render_loss_plot_svg(folder / "none"); });
  REQUIRE(error.code() == ExitCode::kBadInput);
  REQUIRE(error.message() == folder / "none" + ": cannot be read: No such file or directory");
}

TEST_CASE("the table averages between its rows and keeps first and last") {
  std::vector<StepMetrics> metrics{validation(0, 3.5)};
  for (int64_t step = 1; step <= 60; ++step) metrics.push_back(with_loss(step, 3));
  metrics[1].loss = 4;
  metrics[60].validation_loss = 2.75;
  REQUIRE(loss_table(metrics, 4) ==
          "step  training loss  validation loss  tokens/s\n"
          "----  -------------  ---------------  --------\n"
          "   0              -           3.5000         -\n"
          "  20         3.0500                -      1024\n"
          "  40         3.0000                -      1024\n"
          "  60         3.0000           2.7500      1024\n"
          "(training loss and tokens/s: of all steps since the row above)\n");
}

TEST_CASE("validations choose the table's rows when there are enough") {
  std::vector<StepMetrics> metrics;
  for (int64_t step = 1; step <= 10; ++step) metrics.push_back(with_loss(step, 1));
  metrics[2].validation_loss = 5;
  metrics[6].validation_loss = kPlotNan;
  REQUIRE(loss_table(metrics) ==
          "step  training loss  validation loss  tokens/s\n"
          "----  -------------  ---------------  --------\n"
          "   1         1.0000                -      1024\n"
          "   3         1.0000           5.0000      1024\n"
          "   7         1.0000              nan      1024\n"
          "  10         1.0000                -      1024\n"
          "(training loss and tokens/s: of all steps since the row above)\n");
}

TEST_CASE("an empty run has an empty table") {
  REQUIRE(loss_table({}) ==
          "step  training loss  validation loss  tokens/s\n"
          "----  -------------  ---------------  --------\n");
}

}  // namespace
}  // namespace ftrun
