#pragma once

#include <string>

namespace ftrun::testing {

/// Runs the test cases of this program; returns the exit status. Catch2's own sources are compiled
/// with it, once. Where each failed assertion is a wait (tests/waiting.h) the last line says so.
int run_test_cases(int argc, char** argv);

/// Notes what was said when a wait reached its limit: a failed assertion that shows this text is a
/// wait. Any thread may call it.
void record_wait(const std::string& text);

}  // namespace ftrun::testing
