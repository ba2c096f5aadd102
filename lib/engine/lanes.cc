#include "engine/lanes.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <utility>

#include "base/start_threads.h"
#include "kernels/kernels.h"

namespace ftrun {

LaneThreads::LaneThreads(const Program& program, Runner run, std::function<void()> on_abort,
                         bool one_launcher)
    : program_(program),
      lanes_(static_cast<size_t>(lane_count(program))),
      run_(std::move(run)),
      on_abort_(std::move(on_abort)),
      instrs_(lanes_),
      one_launcher_(one_launcher),
      done_(lanes_, 0),
      done_at_compute_end_(lanes_, 0),
      finished_runs_(lanes_, 0),
      waiters_(lanes_) {
  plan_waits(program);
  for (size_t lane = 0; lane < lanes_; ++lane)
    if (is_between_stages(program, static_cast<Lane>(lane))) stage_lanes_.push_back(lane);
  std::vector<size_t> workers;
  for (size_t worker = 1; worker < lanes_; ++worker)
    if (!instrs_[worker].empty()) workers.push_back(worker);
  threads_ = start_threads(
      workers.size(), [this, workers](size_t i) { serve(workers[i]); }, [this] { stop(); });
}

LaneThreads::~LaneThreads() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void LaneThreads::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  unlock_and_wake(lock);
}

size_t LaneThreads::thread_of(Lane lane) const {
  return static_cast<size_t>(one_launcher_ ? std::min(lane, Lane::kFirstGroup) : lane);
}

/// Plans the waits of each instruction. A lane runs in order, so waiting for an instruction means
/// waiting until its lane has finished a certain number of instructions.
void LaneThreads::plan_waits(const Program& program) {
  ordinals_.resize(program.instrs.size());
  positions_.resize(program.instrs.size());
  std::vector<size_t> length(lanes_, 0);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const auto lane = static_cast<size_t>(instr.lane);
    LaneInstr planned{static_cast<InstrId>(i), lane, std::vector<int64_t>(lanes_, 0)};
    for (const InstrId wait : instr.waits) {
      int64_t& count = planned.required_counts[static_cast<size_t>(program.instr(wait).lane)];
      count = std::max(count, static_cast<int64_t>(ordinals_[static_cast<size_t>(wait)]) + 1);
    }
    ordinals_[i] = length[lane]++;
    auto& of_thread = instrs_[thread_of(instr.lane)];
    positions_[i] = of_thread.size();
    of_thread.push_back(std::move(planned));
  }
}

/// Notes the time, and what all lanes have done. The caller holds the mutex.
void LaneThreads::mark_compute_end() {
  compute_end_ = Clock::now();
  done_at_compute_end_ = done_;
}

template <typename IsOver>
void LaneThreads::wait_until(std::unique_lock<std::mutex>& lock, size_t worker,
                             const IsOver& is_over) {
  if (is_over()) return;
  Waiter& self = waiters_[worker];
  self.is_over = std::cref(is_over);
  self.woken.wait(lock, std::cref(is_over));
  self.is_over = nullptr;
}

void LaneThreads::run_once() {
  {
    std::unique_lock lock(mutex_);
    std::ranges::fill(done_, 0);
    mark_compute_end();
    error_ = nullptr;
    exposed_communication_seconds_ = 0;
    ++started_runs_;
    unlock_and_wake(lock);
  }
  constexpr auto kCaller = static_cast<size_t>(Lane::kCompute);
  run_instrs(kCaller);
  std::unique_lock lock(mutex_);
  wait_until(lock, kCaller, [&] {
    for (size_t worker = 1; worker < lanes_; ++worker)
      if (!instrs_[worker].empty() && finished_runs_[worker] != started_runs_) return false;
    return true;
  });
  if (error_) std::rethrow_exception(error_);
}

void LaneThreads::serve(size_t worker) {
  run_kernels_on_this_thread();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wait_until(lock, worker,
                 [&] { return stopping_ || finished_runs_[worker] != started_runs_; });
      if (stopping_) return;
    }
    run_instrs(worker);
    std::unique_lock lock(mutex_);
    finished_runs_[worker] = started_runs_;
    unlock_and_wake(lock);
  }
}

void LaneThreads::run_instrs(size_t worker) {
  try {
    for (const LaneInstr& instr : instrs_[worker]) {
      wait_for(instr);
      {
        const std::lock_guard lock(mutex_);
        if (error_) return;
      }
      run_(program_.instr(instr.id));
      std::unique_lock lock(mutex_);
      ++done_[instr.lane];
      if (worker == static_cast<size_t>(Lane::kCompute)) mark_compute_end();
      unlock_and_wake(lock);
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Returns whether `first_lane` and the lanes after it have done everything that instruction
/// `instr` waits for.
bool LaneThreads::waits_are_done(const LaneInstr& instr, Lane first_lane) const {
  for (auto lane = static_cast<size_t>(first_lane); lane < lanes_; ++lane)
    if (done_[lane] < instr.required_counts[lane]) return false;
  return true;
}

bool LaneThreads::is_ready(InstrId id) {
  const auto& of_thread = instrs_[thread_of(program_.instr(id).lane)];
  const std::lock_guard lock(mutex_);
  return !error_ && waits_are_done(of_thread[positions_[static_cast<size_t>(id)]]);
}

bool LaneThreads::stage_waits_are_done(const LaneInstr& instr) const {
  return std::all_of(stage_lanes_.begin(), stage_lanes_.end(),
                     [&](size_t lane) { return done_[lane] >= instr.required_counts[lane]; });
}

/// Returns whether an instruction that `instr` waits for, on one of the awaited lanes, was not done
/// when the compute instruction before `instr` ended. The caller holds the mutex.
template <typename IsAwaited>
bool LaneThreads::had_to_wait(const LaneInstr& instr, const IsAwaited& is_awaited) const {
  for (size_t lane = 0; lane < lanes_; ++lane)
    if (is_awaited(lane) && done_at_compute_end_[lane] < instr.required_counts[lane]) return true;
  return false;
}

/// Releases the mutex, and wakes the waiting threads whose condition holds. A thread that is woken
/// while the mutex is held would wait for it at once, which takes two more context switches.
void LaneThreads::unlock_and_wake(std::unique_lock<std::mutex>& lock) {
  std::array<std::condition_variable*, 8> woken{};
  size_t count = 0;
  for (Waiter& waiter : waiters_) {
    if (!waiter.is_over || !waiter.is_over()) continue;
    if (count == woken.size())
      waiter.woken.notify_one();
    else
      woken[count++] = &waiter.woken;
  }
  lock.unlock();
  for (size_t i = 0; i < count; ++i) woken[i]->notify_one();
}

void LaneThreads::wait_for(const LaneInstr& instr) {
  std::unique_lock lock(mutex_);
  const bool on_compute = instr.lane == static_cast<size_t>(Lane::kCompute);
  Clock::time_point begin = compute_end_;
  // Returns the seconds of a wait for lanes. A compute thread that hands work to another lane's
  // thread may lose its core to it, and may come here when that lane is done. This was a wait, too,
  // so a wait begins at the end of the compute instruction before.
  const auto seconds_until = [&](const auto& done, const auto& is_awaited) {
    const auto is_over = [&] { return error_ != nullptr || done(); };
    if (!is_over()) {
      wait_until(lock, thread_of(static_cast<Lane>(instr.lane)), is_over);
    } else if (!on_compute || !had_to_wait(instr, is_awaited)) {
      return 0.0;
    }
    const Clock::time_point end = Clock::now();
    return std::chrono::duration<double>(end - std::exchange(begin, end)).count();
  };
  const double stages = seconds_until(
      [&] { return stage_waits_are_done(instr); },
      [&](size_t lane) { return std::ranges::find(stage_lanes_, lane) != stage_lanes_.end(); });
  const double groups =
      seconds_until([&] { return waits_are_done(instr, Lane::kFirstGroup); },
                    [](size_t lane) { return lane >= static_cast<size_t>(Lane::kFirstGroup); });
  const double rest =
      seconds_until([&] { return waits_are_done(instr); }, [](size_t) { return true; });
  if (!on_compute) return;
  exposed_communication_seconds_ += groups;
  compute_waits_ = {stages, groups + rest};
}

void LaneThreads::fail(std::exception_ptr error) {
  {
    std::unique_lock lock(mutex_);
    if (error_) return;
    error_ = std::move(error);
    unlock_and_wake(lock);
  }
  if (on_abort_) on_abort_();
}

}  // namespace ftrun
