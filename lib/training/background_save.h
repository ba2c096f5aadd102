#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/error.h"
#include "checkpoint/save.h"

namespace ftrun {

/// A checkpoint that a thread of its own writes while training goes on. On every rank of a run one:
/// they write together.
class BackgroundSave {
 public:
  /// `write` must not touch what training changes.
  BackgroundSave(int64_t step, std::function<SaveResult()> write);
  /// Waits.
  ~BackgroundSave() = default;
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// The step after which the state was copied.
  int64_t step() const { return step_; }
  /// Says whether finish() would return at once.
  bool has_ended() const { return ended_; }

  struct Outcome {
    SaveResult result;
    /// Why there is no checkpoint, or what followed it failed; "" otherwise.
    std::string failure;
    /// Seconds from the copy to the end.
    double seconds = 0;
  };
  /// Waits.
  const Outcome& finish();

 private:
  const int64_t step_;
  Outcome outcome_;
  std::atomic<bool> ended_ = false;
  std::jthread thread_;  // last: uses the others
};

}  // namespace ftrun
