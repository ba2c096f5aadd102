#pragma once

#include <functional>
#include <string>

namespace ftrun::testing {

/// Requirement is a feature that a machine may lack. The tests that need it are a separate CTest
/// entry (ftrun_entry_that_needs), whose environment names the requirement in FTRUN_TEST_NEEDS.
/// Before the first test, the program checks whether the machine has it; if not, it says what is
/// missing and exits with 77, which CTest counts as skipped. A test case that only such an entry
/// may run has the tag "[.needs-NAME]".
///   const testing::Requirement kRing("io_uring", [] { return ring_refusal(); });
struct Requirement {
  /// Registers a requirement. `unmet` returns the reason why tests with this requirement cannot run
  /// here, or "".
  Requirement(std::string name, std::function<std::string()> unmet);
};

/// Returns the name of the requirement of the entry that runs this process; "" for the folder's
/// main entry and for a run by hand.
std::string requirement_of_entry();

/// Returns why this process cannot run its tests; "" if it can.
std::string unmet_requirement();

/// Returns the path of a file in the reference material, a folder next to the checkout (the
/// requirement "reference").
std::string reference_file(const std::string& name);

}  // namespace ftrun::testing
