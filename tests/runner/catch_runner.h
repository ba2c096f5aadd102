#pragma once

#include <string>

namespace ftrun::testing {

/// Runs this program's test cases and returns the exit status. Catch2's own sources are compiled
/// with this file's .cc, once. If every failed assertion is due to a wait that reached its limit
/// (tests/waiting.h), the last line of output says so.
int run_test_cases(int argc, char** argv);

/// Records the message of a wait that reached its limit: a failed assertion whose text contains the
/// message's first line counts as due to waiting. Any thread may call it.
void record_wait(const std::string& text);

}  // namespace ftrun::testing
