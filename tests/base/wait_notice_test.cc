#include "base/wait_notice.h"

#include <atomic>
#include <vector>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a wait is reported after ten seconds and every half minute after that") {
  std::vector<std::string> lines;
  const auto start = WaitNotice::Clock::now();
  WaitNotice notice({.report = [&](const std::string& line) { lines.push_back(line); }}, start);
  for (auto passed = 0s; passed <= 100s; ++passed)
    notice.poll([](const std::string& waited) { return "waited " + waited; }, start + passed);
  CHECK(lines ==
        std::vector<std::string>{"waited 10.0s", "waited 40.0s", "waited 1m 10s", "waited 1m 40s"});
}

TEST_CASE("a wait without a description is asked for one again half a minute later") {
  std::vector<std::string> lines;
  const auto start = WaitNotice::Clock::now();
  WaitNotice notice({.report = [&](const std::string& line) { lines.push_back(line); }}, start);
  notice.poll_if([](const std::string&) { return std::nullopt; }, start + 11s);
  notice.poll([](const std::string& waited) { return waited; }, start + 12s);
  notice.poll([](const std::string& waited) { return waited; }, start + 41s);
  CHECK(lines == std::vector<std::string>{"41.0s"});
}

TEST_CASE("a wait without progress is reported by a thread, which ends with it") {
  std::atomic<int> notices = 0;
  {
    const WaitReporter wait(
        {.first_delay = 1ms, .interval = 1ms, .report = [&](const std::string&) { ++notices; }},
        [](const std::string& waited) { return waited; });
    while (notices < 3) std::this_thread::sleep_for(1ms);
  }
  const int before = notices;
  const WaitReporter quick({.report = [&](const std::string&) { ++notices; }},
                           [](const std::string& waited) { return waited; });
  CHECK(notices == before);
}

}  // namespace
}  // namespace ftrun
