#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace ftrun {

/// WaitNoticeOptions say when a wait is reported, and to whom.
struct WaitNoticeOptions {
  /// The time that a wait lasts before its first report, and the time between later reports.
  std::chrono::milliseconds first = std::chrono::seconds(10);
  std::chrono::milliseconds every = std::chrono::seconds(30);
  /// Takes the line; the default is a notice of the log.
  std::function<void(const std::string& line)> say = log_wait;

  static void log_wait(const std::string& line);
};

/// WaitNotice reports what a wait is for, once it is long. It serves waits that poll.
class WaitNotice {
 public:
  using Clock = std::chrono::steady_clock;

  /// Begins the wait at `since`.
  explicit WaitNotice(WaitNoticeOptions options = {}, Clock::time_point since = Clock::now());

  /// Says whether the wait is to be reported now; true once for each report.
  bool is_due(Clock::time_point now = Clock::now());
  /// Reports `what`, which gets the length of the wait so far ("10.0s"), when it is due.
  void poll(const std::function<std::string(const std::string& waited)>& what,
            Clock::time_point now = Clock::now());
  /// Reports as poll() does, but `what` may have nothing to say.
  void poll_if(const std::function<std::optional<std::string>(const std::string& waited)>& what,
               Clock::time_point now = Clock::now());

 private:
  WaitNoticeOptions options_;
  Clock::time_point since_;
  Clock::time_point due_;
};

/// WaitReporter reports waits that block: a thread reports what they are for while this object
/// lives.
class WaitReporter {
 public:
  /// Starts that thread, which calls `what`.
  WaitReporter(WaitNoticeOptions options,
               std::function<std::string(const std::string& waited)> what);
  ~WaitReporter() = default;
  WaitReporter(const WaitReporter&) = delete;
  WaitReporter& operator=(const WaitReporter&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable_any over_;
  std::jthread thread_;  // last: ends before what it uses goes
};

}  // namespace ftrun
