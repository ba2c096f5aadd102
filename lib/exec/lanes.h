#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// Runs a program's instructions on lanes: compute on the calling thread, every other lane on a thread
/// of its own that lives as long as this object. Where a GPU does the work the threads only put it into
/// its streams, and "done" here means that (exec/gpu_device.h sees to the rest).
class Lanes {
 public:
  using Runner = std::function<void(const Instr&)>;

  /// `run` is called for each instruction, from the thread of its lane. `on_abort` is called once
  /// when a lane failed, to release what other lanes wait for inside `run`.
  Lanes(const Program& program, Runner run, std::function<void()> on_abort);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// Runs every instruction once. Rethrows the first failure after all lanes have stopped.
  void run_once();

  /// Whether all that the instruction waits for is done. For the lane that runs what stands before
  /// it.
  bool ready(InstrId id);

  /// Seconds that compute stood waiting for other lanes in the last run.
  double waited_seconds() const { return waited_seconds_; }

 private:
  struct Step {
    InstrId instr;
    /// For each other lane the number of its instructions that must be done first.
    std::array<int64_t, kLaneCount> after{};
  };

  void plan(const Program& program);
  bool done_before(const Step& step) const;
  void serve(size_t lane);
  void run_lane(size_t lane);
  void wait_for(const Step& step, size_t lane);
  void fail(std::exception_ptr error);

  const Program& program_;
  Runner run_;
  std::function<void()> on_abort_;
  std::array<std::vector<Step>, kLaneCount> steps_;
  /// Of each instruction among those of its lane.
  std::vector<size_t> ordinal_;
  std::array<int64_t, kLaneCount> done_{};
  std::array<int64_t, kLaneCount> runs_{};
  int64_t started_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  double waited_seconds_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::thread> threads_;
};

}  // namespace ftrun
