#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace ftrun {

/// WaitNoticeOptions specify when a long wait is reported, and by which function.
struct WaitNoticeOptions {
  /// The time that a wait lasts before its first report, and the time between later reports.
  std::chrono::milliseconds first_delay = std::chrono::seconds(10);
  std::chrono::milliseconds interval = std::chrono::seconds(30);
  /// Called with the line to report; the default logs a notice.
  std::function<void(const std::string& line)> report = log_wait;

  static void log_wait(const std::string& line);
};

/// WaitNotice reports what a wait is for, once it has become long. It is for waits that poll.
class WaitNotice {
 public:
  using Clock = std::chrono::steady_clock;

  /// Begins the wait at `since`.
  explicit WaitNotice(WaitNoticeOptions options = {}, Clock::time_point since = Clock::now());

  /// Returns whether the wait must be reported now; returns true once for each report.
  bool is_due(Clock::time_point now = Clock::now());
  /// Reports the line that `describe_wait` returns if a report is due; it is called with the length
  /// of the wait so far ("10.0s").
  void poll(const std::function<std::string(const std::string& waited)>& describe_wait,
            Clock::time_point now = Clock::now());
  /// Reports as poll() does, unless `describe_wait` returns nothing.
  void poll_if(
      const std::function<std::optional<std::string>(const std::string& waited)>& describe_wait,
      Clock::time_point now = Clock::now());

 private:
  WaitNoticeOptions options_;
  Clock::time_point waits_since_;
  Clock::time_point next_notice_;
};

/// WaitReporter reports a wait that blocks its thread: while this object lives, another thread
/// reports what the wait is for.
class WaitReporter {
 public:
  /// Starts the reporting thread, which calls `describe_wait`.
  WaitReporter(WaitNoticeOptions options,
               std::function<std::string(const std::string& waited)> describe_wait);
  ~WaitReporter() = default;
  WaitReporter(const WaitReporter&) = delete;
  WaitReporter& operator=(const WaitReporter&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable_any stop_wake_;
  std::jthread thread_;  // last: it ends before the members it uses are destroyed
};

}  // namespace ftrun
