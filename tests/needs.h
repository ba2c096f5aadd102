#pragma once

#include <functional>
#include <string>

namespace ftrun::testing {

/// Need is a feature that a machine may lack. The tests that require it are a separate CTest entry
/// (ftrun_entry_that_needs), whose environment names the need in FTRUN_TEST_NEEDS. Before the first
/// test, the program checks whether something is missing; if so, it says what and exits with 77,
/// which CTest counts as skipped. A test case that only such an entry may run has the tag
/// "[.needs-NAME]".
///
///   const testing::Need kRing("io_uring", [] { return ring_refusal(); });
struct Need {
  /// Registers a need. `missing` returns the reason why tests with this need cannot run here, or
  /// "".
  Need(std::string name, std::function<std::string()> missing);
};

/// Returns the need of the entry that runs this process; "" for the folder's main entry and for a
/// run by hand.
std::string needed();

/// Returns why this process cannot run its tests; "" if it can.
std::string missing();

/// Returns the path of a file in the reference material, a folder next to the checkout (the need
/// "reference").
std::string reference_file(const std::string& name);

}  // namespace ftrun::testing
