#include "catch_runner.h"

#include <iostream>
#include <mutex>
#include <vector>

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

namespace ftrun::testing {

namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Failures counts failed assertions, and how many of them show a recorded wait.
struct Failures {
  std::mutex mutex;
  std::vector<std::string> noted;
  std::string first_wait;
  int all = 0, waits = 0;

  void add(const std::string& shown) {
    const std::lock_guard lock(mutex);
    ++all;
    for (const std::string& wait : noted) {
      if (shown.find(wait) == std::string::npos) continue;
      if (++waits == 1) first_wait = wait;
      return;
    }
  }
};

Failures& failures() {
  static Failures all;
  return all;
}

/// CountingReporter prints what Catch2's own reporter prints, and counts failures. A listener could
/// count them too, but with one Catch2 makes a report, with copies of all INFO texts, for each
/// assertion that holds.
struct CountingReporter : Catch::ConsoleReporter {
  using ConsoleReporter::ConsoleReporter;
  bool assertionEnded(const Catch::AssertionStats& stats) override {
    const Catch::AssertionResult& result = stats.assertionResult;
    if (!result.isOk())
      failures().add(result.getExpandedExpression() + "\n" + std::string(result.getMessage()));
    return ConsoleReporter::assertionEnded(stats);
  }
};
constexpr const char* kCounting = "counting";
CATCH_REGISTER_REPORTER(kCounting, CountingReporter)

}  // namespace

void record_wait(const std::string& text) {
  const std::lock_guard lock(failures().mutex);
  if (!text.empty()) failures().noted.push_back(first_line(text));
}

int run_test_cases(int argc, char** argv) {
  Catch::Session session;
  session.configData().reporterName = kCounting;
  const int status = session.run(argc, argv);
  const Failures& found = failures();
  if (status != 0 && found.all > 0 && found.all == found.waits)
    std::cout << "timed out: " << found.first_wait << std::endl;
  return status;
}

}  // namespace ftrun::testing
