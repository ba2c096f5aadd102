#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <optional>
#include <sstream>

#include "base/table.h"
#include "report/progress_line.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

ProgressState example_state() {
  return {.metrics = example_step(12), .total_steps = 60, .seconds_left = 245.0};
}

/// Returns how many columns a line takes on a terminal, where color sequences take none.
size_t visible_columns(const std::string& line) {
  std::string plain;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b')
      i = line.find('m', i);
    else
      plain += line[i];
  }
  return text_columns(plain);
}

/// Sets an environment variable during a test; unsets it if no value is given.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = ::getenv(name)) old_ = old;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~EnvironmentVariable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST_CASE("the live line shows step, bar, loss, rate and time left") {
  REQUIRE(live_progress_text(example_state(), {.width = 82}) ==
          "step 12/60 [####------------------] 20%  loss 1.7500  1024 tokens/s  4m 05s left");
}

TEST_CASE("the live line is never longer than its longest bar") {
  REQUIRE(
      live_progress_text(example_state(), {.width = 300}) ==
      "step 12/60 [######------------------------] 20%  loss 1.7500  1024 tokens/s  4m 05s left");
}

TEST_CASE("the live line on a narrow terminal omits its least important parts") {
  ProgressState state = example_state();
  state.metrics.evaluations = {{.set = "validation", .loss = 2}};
  const auto at = [&](int width) { return live_progress_text(state, {.width = width}); };
  REQUIRE(at(78) == "step 12/60  20%  loss 1.7500  1024 tokens/s  4m 05s left  validation 2.0000");
  REQUIRE(at(67) == "step 12/60  20%  loss 1.7500  1024 tokens/s  4m 05s left");
  REQUIRE(at(56) == "step 12/60  loss 1.7500  1024 tokens/s  4m 05s left");
  REQUIRE(at(40) == "step 12/60  loss 1.7500  4m 05s left");
  REQUIRE(at(30) == "step 12/60  loss 1.7500");
  REQUIRE(at(23) == "step 12/60");
  REQUIRE(at(20) == "step 12/60");
  REQUIRE(at(6) == "step ");
  REQUIRE(at(0) == "s");
}

TEST_CASE("the live line never fills the width") {
  ProgressState state = example_state();
  state.metrics.evaluations = {{.set = "validation", .loss = -1e300}};
  state.metrics.loss = kNoValue;
  state.metrics.tokens_per_second = 1e300;
  for (const bool trained : {true, false})
    for (const bool fancy : {true, false})
      for (int width = 2; width < 200; ++width) {
        state.metrics.trained = trained;
        const std::string line = live_progress_text(state, {width, fancy, fancy});
        REQUIRE(visible_columns(line) < static_cast<size_t>(width));
      }
}

TEST_CASE("colors and blocks change how the line looks, not how long it is") {
  ProgressState state = example_state();
  state.metrics.loss = kNoValue;
  state.seconds_left.reset();
  REQUIRE(live_progress_text(state, {.width = 54, .color = true, .unicode = true}) ==
          "step 12/60 [\x1b[32m██\x1b[0m░░░░░░░░] 20%  \x1b[31mloss nan\x1b[0m  1024 tokens/s");
}

TEST_CASE("a live line without a known last step has no bar") {
  REQUIRE(live_progress_text({.metrics = example_step(5)}, {.width = 80}) ==
          "step 5  loss 2.6250  1024 tokens/s");
}

TEST_CASE("a line on a pipe has all values") {
  ProgressState state = example_state();
  REQUIRE(plain_progress_text(state) ==
          "step 12/60  loss 1.7500  grad_norm 1.2500  lr 1e-05  1024 tokens/s  2.00 s/step  "
          "4m 05s left");
  state.metrics.loss_scale = 32768;
  state.metrics.skipped = true;
  state.metrics.gradient_norm = kNoValue;
  state.metrics.evaluations = {{.set = "validation", .loss = 2.5}};
  REQUIRE(plain_progress_text(state) ==
          "step 12/60  loss 1.7500  grad_norm nan  lr 1e-05  loss_scale 32768  SKIPPED  "
          "1024 tokens/s  2.00 s/step  validation loss 2.5000 (perplexity 12.18)  4m 05s left");
  StepMetrics before;
  before.trained = false;
  before.evaluations = {{.set = "validation", .loss = 3.5}};
  REQUIRE(plain_progress_text({.metrics = before}) ==
          "step 0  validation loss 3.5000 (perplexity 33.12)");
  before.evaluations = {{.set = "a", .loss = 0, .accuracy = 0.125}, {.set = "b", .loss = 1}};
  REQUIRE(
      plain_progress_text({.metrics = before}) ==
      "step 0  a loss 0.0000 (perplexity 1, accuracy 12.5 %)  b loss 1.0000 (perplexity 2.718)");
}

std::vector<int64_t> plain_steps(int64_t every, int64_t total,
                                 const std::vector<StepMetrics>& all) {
  std::ostringstream out;
  ProgressLine progress(out, {.steps_between = every}, total);
  for (const StepMetrics& m : all) progress.show(m);
  std::vector<int64_t> steps;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) steps.push_back(std::stoll(line.substr(5)));
  return steps;
}

TEST_CASE("a pipe gets every Nth step, and the first, the last and all remarkable ones") {
  std::vector<StepMetrics> all;
  for (int64_t step = 3; step <= 24; ++step) all.push_back(example_step(step));
  all[4].evaluations = {{.set = "validation", .loss = 1}};  // step 7
  all[5].skipped = true;                                    // step 8
  all[9].loss = kNoValue;                                   // step 12
  REQUIRE(plain_steps(10, 24, all) == std::vector<int64_t>{3, 7, 8, 10, 12, 20, 24});
  REQUIRE(plain_steps(0, 24, {all[0], all[1]}) == std::vector<int64_t>{3, 4});
}

TEST_CASE("the time left is estimated without the first step, which is slower than others") {
  std::ostringstream out;
  ProgressLine progress(out, {.steps_between = 1}, 4);
  const double seconds[] = {100, 1, 3, 2};
  for (int64_t step = 1; step <= 4; ++step) {
    StepMetrics m = example_step(step);
    m.step_seconds = seconds[step - 1];
    progress.show(m);
  }
  std::vector<std::string> ends;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);)
    ends.push_back(line.substr(line.rfind("  ") + 2));
  REQUIRE(ends == std::vector<std::string>{"5m 00s left", "2.0s left", "2.0s left", "2.00 s/step"});
}

TEST_CASE("a terminal gets one line that is redrawn, but not too often") {
  std::ostringstream out;
  double now = 100;
  ProgressOptions options{.live = true, .width = [] { return 40; }, .clock = [&] { return now; }};
  {
    ProgressLine progress(out, options, 4);
    progress.show(example_step(1));  // the first is drawn
    now += 0.0625;
    progress.show(example_step(2));  // too soon
    now += 0.0625;
    progress.show(example_step(3));
    progress.print("a word from a log");
    progress.show(example_step(4));  // the last is drawn at any time
  }
  REQUIRE(out.str() ==
          "\r\x1b[Kstep 1/4  loss 3.1250  6.0s left\r\x1b[Kstep 3/4  loss 2.8750  2.0s left"
          "\r\x1b[Ka word from a log\nstep 3/4  loss 2.8750  2.0s left"
          "\r\x1b[Kstep 4/4  loss 2.7500  1024 tokens/s\n");
}

TEST_CASE("the line of a validation stays on the terminal") {
  std::ostringstream out;
  ProgressLine progress(out, {.live = true, .width = [] { return 30; }}, 0);
  StepMetrics m;
  m.trained = false;
  m.evaluations = {{.set = "validation", .loss = 3.5}};
  progress.show(m);
  progress.finish();
  progress.finish();
  progress.print("done");
  REQUIRE(out.str() ==
          "step 0  validation loss 3.5000 (perplexity 33.12)\n\r\x1b[Kstep 0  validation "
          "3.5000\ndone\n");
}

TEST_CASE("a pipe is not treated as a terminal") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const ProgressOptions options = progress_options_for(ends[1], 5);
  REQUIRE_FALSE(options.live);
  REQUIRE_FALSE(options.color);
  REQUIRE(options.steps_between == 5);
  REQUIRE(options.width() == 80);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a terminal is asked for its width, and NO_COLOR, TERM and the locale are respected") {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(master >= 0);
  REQUIRE(::grantpt(master) == 0);
  REQUIRE(::unlockpt(master) == 0);
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  winsize size{};
  size.ws_col = 123;
  REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
  const EnvironmentVariable term("TERM", "xterm"), all("LC_ALL", "C.UTF-8"),
      no_color("NO_COLOR", nullptr);
  ProgressOptions options = progress_options_for(terminal, 5);
  REQUIRE(options.live);
  REQUIRE(options.color);
  REQUIRE(options.unicode);
  REQUIRE(options.width() == 123);
  size.ws_col = 60;
  REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
  REQUIRE(options.width() == 60);
  {
    const EnvironmentVariable on("NO_COLOR", "1"), plain("LC_ALL", "C");
    options = progress_options_for(terminal, 5);
    REQUIRE(options.live);
    REQUIRE_FALSE(options.color);
    REQUIRE_FALSE(options.unicode);
  }
  {
    const EnvironmentVariable empty("NO_COLOR", "");
    REQUIRE(progress_options_for(terminal, 5).color);
  }
  const EnvironmentVariable dumb("TERM", "dumb");
  REQUIRE_FALSE(progress_options_for(terminal, 5).live);
  ::close(terminal);
  ::close(master);
}

}  // namespace
}  // namespace ftrun
