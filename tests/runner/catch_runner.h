#pragma once

namespace ftrun::testing {

/// Runs the test cases of this program; the exit status. Catch2's own sources are compiled with it, once.
int run_test_cases(int argc, char** argv);

}  // namespace ftrun::testing
