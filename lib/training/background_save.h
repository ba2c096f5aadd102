#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "checkpoint/save.h"

namespace ftrun {

/// BackgroundSave writes a checkpoint in its own thread while training continues. Every rank of a
/// run has one, and all ranks write together.
class BackgroundSave {
 public:
  /// Starts `write` in a new thread; `write` must not touch state that training changes.
  BackgroundSave(int64_t step, std::function<SaveResult()> write);
  /// Waits for the thread.
  ~BackgroundSave() = default;
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Returns the step after which the state was copied.
  int64_t step() const { return step_; }
  /// Returns whether finish() would return at once.
  bool has_ended() const { return ended_; }
  /// Waits for the save to end, but at most `limit`. Returns whether it has ended.
  bool ends_within(std::chrono::milliseconds limit);

  struct Outcome {
    SaveResult result;
    /// The reason why no checkpoint was written, or why the work after the save failed; ""
    /// otherwise.
    std::string failure;
    /// Seconds from the copy of the state to the end of the save.
    double seconds = 0;
  };
  /// Waits for the save to end, and returns its outcome.
  const Outcome& finish();

 private:
  const int64_t step_;
  Outcome outcome_;
  std::atomic<bool> ended_ = false;
  std::mutex mutex_;
  std::condition_variable end_;
  std::jthread thread_;  // last member, because the thread uses the others
};

}  // namespace ftrun
