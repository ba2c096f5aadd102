#pragma once

#include <functional>
#include <string>

namespace ftrun::testing {

/// Need is a feature that a machine may lack. Tests that require it are a separate CTest entry
/// (ftrun_entry_that_needs), whose environment names it in FTRUN_TEST_NEEDS: before the first test
/// the program asks what is missing, and if something is, it says so and ends with 77, which CTest
/// counts as skipped. A test case that only such an entry may run has the tag "[.needs-NAME]".
///
///   const testing::Need kRing("io_uring", [] { return ring_refusal(); });
struct Need {
  /// Makes a need; `missing` gives the reason why tests that need this cannot run here, "" when
  /// they can.
  Need(std::string name, std::function<std::string()> missing);
};

/// Returns what the entry that runs this process needs; "" for the folder's own and for a run by
/// hand.
std::string needed();

/// Returns why this process cannot run what it was started for; "" when it can.
std::string missing();

/// Returns a file of the reference material that lies beside a checkout (the need "reference").
std::string reference_file(const std::string& name);

}  // namespace ftrun::testing
