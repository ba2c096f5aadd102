#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace ftrun {

/// WaitNoticeOptions say when a wait is told, and to whom.
struct WaitNoticeOptions {
  /// The time that a wait lasts before it is told for the first time, and between two times after
  /// that.
  std::chrono::milliseconds first = std::chrono::seconds(10);
  std::chrono::milliseconds every = std::chrono::seconds(30);
  /// Takes the line; the default is a notice of the log.
  std::function<void(const std::string& line)> say = log_wait;

  static void log_wait(const std::string& line);
};

/// Tells what a wait is for, once it is long. It serves waits that look around now and then by
/// themselves.
class WaitNotice {
 public:
  using Clock = std::chrono::steady_clock;

  /// The wait begins at `since`.
  explicit WaitNotice(WaitNoticeOptions options = {}, Clock::time_point since = Clock::now());

  /// Says whether the wait is to be told now; true once each time.
  bool is_due(Clock::time_point now = Clock::now());
  /// Says `what`, which gets the length of the wait so far ("10.0s"), where it is due.
  void look(const std::function<std::string(const std::string& waited)>& what,
            Clock::time_point now = Clock::now());
  /// Looks whether the wait is to be told, where `what` may have nothing to say.
  void look_if(const std::function<std::optional<std::string>(const std::string& waited)>& what,
               Clock::time_point now = Clock::now());

 private:
  WaitNoticeOptions options_;
  Clock::time_point since_;
  Clock::time_point due_;
};

/// ToldWait tells of waits that stand still: a thread tells what they are for while this object
/// lives.
class ToldWait {
 public:
  /// `what` is called from that thread.
  ToldWait(WaitNoticeOptions options, std::function<std::string(const std::string& waited)> what);
  ~ToldWait() = default;
  ToldWait(const ToldWait&) = delete;
  ToldWait& operator=(const ToldWait&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable_any over_;
  std::jthread thread_;  // last: ends before what it uses goes
};

}  // namespace ftrun
