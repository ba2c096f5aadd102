#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// LaneThreads runs a program's instructions: compute on the calling thread, every other lane on
/// its own thread, which lives as long as this object. If a GPU does the work, the threads only
/// enqueue it in its streams, and an instruction is "done" here once that has happened
/// (engine/gpu_device.h does the rest). The lanes of groups then share a thread, so that
/// collectives of several communicators are launched in program order on every rank, as NCCL
/// requires.
class LaneThreads {
 public:
  using Runner = std::function<void(const Instr&)>;

  /// Calls `run` for each instruction, from the thread of its lane. When a lane has failed, calls
  /// `on_abort` once, to release other lanes that wait inside `run`. Throws Error(kEnvironment) if
  /// the system does not start all threads.
  LaneThreads(const Program& program, Runner run, std::function<void()> on_abort,
              bool one_launcher = false);
  /// Stops the threads. Must not be called while run_once() runs.
  ~LaneThreads();
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  /// Runs every instruction once. Rethrows the first failure after all lanes have stopped.
  void run_once();

  /// Returns whether everything that the instruction waits for is done. Call it only from the
  /// thread of the instruction's own lane, while it runs an earlier instruction of that lane.
  bool is_ready(InstrId id);

  /// ComputeWaits holds the seconds that compute waited before the current instruction: for joint
  /// work of ranks of several stages, and for anything else.
  struct ComputeWaits {
    double stage_seconds = 0;
    double other_seconds = 0;
  };
  const ComputeWaits& compute_waits() const { return compute_waits_; }

  /// Returns the seconds that compute waited for lanes of groups in the last run. A wait begins at
  /// the end of the compute instruction before it. Does not count waits for copies between tiers
  /// after communication was done, or waits for other stages of a pipeline.
  double exposed_communication_seconds() const { return exposed_communication_seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  /// LaneInstr is an instruction with its lane and its waits.
  struct LaneInstr {
    InstrId id;
    size_t lane;
    /// The number of instructions of each other lane that must be done first.
    std::vector<int64_t> required_counts;
  };

  void plan_waits(const Program& program);
  size_t thread_of(Lane lane) const;
  bool waits_are_done(const LaneInstr& instr, Lane first_lane = Lane::kCompute) const;
  bool stage_waits_are_done(const LaneInstr& instr) const;
  void stop();
  void serve(size_t worker);
  void run_instrs(size_t worker);
  void wait_for(const LaneInstr& instr);
  template <typename IsAwaited>
  bool had_to_wait(const LaneInstr& instr, const IsAwaited& is_awaited) const;
  void mark_compute_end();
  template <typename IsOver>
  void wait_until(std::unique_lock<std::mutex>& lock, size_t worker, const IsOver& is_over);
  void unlock_and_wake(std::unique_lock<std::mutex>& lock);
  void fail(std::exception_ptr error);

  const Program& program_;
  const size_t lanes_;
  Runner run_;
  std::function<void()> on_abort_;
  /// The instructions of each thread: those of one lane or, with one launcher, those of the lanes
  /// of all groups.
  std::vector<std::vector<LaneInstr>> instrs_;
  bool one_launcher_;
  /// The index of each instruction among those of its lane, and its index in instrs_ of its thread.
  std::vector<size_t> ordinals_;
  std::vector<size_t> positions_;
  /// The number of instructions of each lane that are done, now and when the last compute
  /// instruction ended (or the run began), and that time.
  std::vector<int64_t> done_;
  std::vector<int64_t> done_at_compute_end_;
  Clock::time_point compute_end_;
  std::vector<int64_t> finished_runs_;
  int64_t started_runs_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  double exposed_communication_seconds_ = 0;
  /// The lanes of groups that have ranks of several pipeline stages.
  std::vector<size_t> stage_lanes_;
  /// The waits of the calling thread.
  ComputeWaits compute_waits_;
  std::mutex mutex_;
  /// Waiter is a waiting thread and the condition that ends its wait: the thread that fulfills the
  /// condition wakes only this one.
  struct Waiter {
    std::condition_variable woken;
    std::function<bool()> is_over;
  };
  std::vector<Waiter> waiters_;
  std::vector<std::thread> threads_;
};

}  // namespace ftrun
