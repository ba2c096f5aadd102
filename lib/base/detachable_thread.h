#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>

namespace ftrun {

/// DetachableThread runs work that may never end, because a file system does not answer: nothing
/// can interrupt a thread that waits for a page of a mapped file. Such a thread is left behind
/// until the process ends, so `work` must own what it uses, or use what is never freed.
class DetachableThread {
 public:
  /// The time in which a thread that was told to stop must end; one that still waits then is left
  /// behind.
  static constexpr std::chrono::seconds kPatience{5};

  DetachableThread() = default;
  explicit DetachableThread(std::function<void()> work);
  /// Leaves the thread behind if it does not end within kPatience.
  ~DetachableThread() { join_within(kPatience); }
  DetachableThread(DetachableThread&&) = delete;
  DetachableThread& operator=(DetachableThread&&) = delete;

  /// Waits for the end of the work; does nothing after the first call.
  void join();
  /// Waits for the end of the work, but at most `limit`, after which the thread is left behind.
  /// Returns false if it was. After the first call, does nothing and returns true.
  bool join_within(std::chrono::milliseconds limit);

 private:
  std::future<void> end_;
  std::thread thread_;
};

}  // namespace ftrun
