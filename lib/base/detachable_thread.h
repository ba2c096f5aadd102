#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>

namespace ftrun {

/// DetachableThread runs work that may never end, because a file system does not answer: nothing
/// can interrupt a thread that waits for a page of a mapped file. Such a thread is left behind
/// until the process ends, so `work` must own what it uses, or use what is never freed. The time in
/// which such threads were waited for is taken off the time that is left for others, so a process
/// with many of them does not end later than with one.
class DetachableThread {
 public:
  /// The usual time in which a thread that was told to stop must end.
  static constexpr std::chrono::milliseconds kStopTimeout{5000};

  /// Starts the thread, which join_or_detach() leaves behind after `stop_timeout`.
  explicit DetachableThread(std::function<void()> work,
                            std::chrono::milliseconds stop_timeout = kStopTimeout);
  ~DetachableThread() { join_or_detach(); }
  DetachableThread(DetachableThread&&) = delete;
  DetachableThread& operator=(DetachableThread&&) = delete;

  /// Waits for the end of the work; does nothing after the first call.
  void join();
  /// Waits for the end of the work, which was told to stop, but leaves the thread behind after its
  /// stop timeout, less the time in which threads were waited for that were left behind
  /// before. Returns false if it was left now; does nothing after the first call.
  bool join_or_detach();

 private:
  const std::chrono::milliseconds stop_timeout_;
  std::future<void> finished_;
  std::thread thread_;
};

}  // namespace ftrun
