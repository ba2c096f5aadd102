#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/error.h"
#include "catch_runner.h"

#include <catch2/catch.hpp>

// Waits in tests. If a test program fails only by timeouts, its last line says so, and its CTest
// entry is run again (scripts/ctest_runs.py). A timeout is one of the test itself
// (fail_by_timeout), exit code 6 of a program instead of the expected code, or an assertion that
// shows the message of an error with that code. No other failure is a timeout.
namespace ftrun::testing {

/// Fails the test case by a timeout; `what` describes the wait, as "60 s for a line of rank 1".
[[noreturn]] inline void fail_by_timeout(const std::string& what) {
  record_wait(what);
  throw std::runtime_error(what);
}

/// Waits until `condition()` returns true, at most `limit`.
template <typename Condition>
void await_that(Condition condition, const std::string& what,
                std::chrono::milliseconds limit = std::chrono::minutes(2)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end)
      fail_by_timeout(cat(limit.count(), " ms for: ", what));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

/// Fails if a program ended with another exit code than expected.
inline void require_exit(int found, int expected, const std::string& output) {
  if (found == expected) return;
  const std::string text = cat("exit ", found, ", expected ", expected, "\n", output);
  if (found == static_cast<int>(ExitCode::kPeerLost)) fail_by_timeout(text);
  FAIL(text);
}

/// Returns the message of an error, and remembers it if it is an error of a wait.
inline std::string failure_message(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  if (ours != nullptr && ours->code() == ExitCode::kPeerLost) record_wait(ours->what());
  return error.what();
}

}  // namespace ftrun::testing
