#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ftrun {

/// FailureReport is the reason that a rank reports to the supervisor before it ends.
struct FailureReport {
  int rank = 0;
  /// The time when the failure was noticed: nanoseconds of the system clock.
  int64_t unix_ns = 0;
  int exit_code = 1;
  /// The rank's work at that time: "step 12, backward layer 3 mb 0, for 2s"; may be empty.
  std::string activity;
  /// The message that the user reads.
  std::string message;
  /// The rank that this rank names as the cause, because this rank waited for it or because its
  /// part of joint work failed; -1 for none.
  int culprit = -1;
  /// Says whether a device of the causing rank (GPU, memory or CPU) is broken: it fails whatever
  /// work it is given.
  bool is_device_failure = false;
};

/// Makes the report of a rank that ends because of `failure`, which the user sees as `error`.
FailureReport make_failure_report(int rank, const std::exception& failure, const Error& error);

/// Formats the report as one line, at most 4,000 bytes, so that a pipe transfers it whole. The
/// middle of a longer message is cut out; its remedy is kept.
std::string failure_line(const FailureReport& report);
/// Parses a line of failure_line(); returns nothing for any other line.
std::optional<FailureReport> parse_failure_line(std::string_view line);

/// Sends the report to the supervisor that started this process (descriptor FTRUN_STATUS_FD); does
/// nothing if there is no supervisor. Never throws.
void report_failure(const FailureReport& report) noexcept;

/// Returns the system clock in nanoseconds, for FailureReport::unix_ns.
int64_t unix_time_ns();

}  // namespace ftrun
