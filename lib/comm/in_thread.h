#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace ftrun {

/// Runs in its own thread a task that may wait for peers without end, and calls
/// `should_abandon` every `check_interval`. If it returns true, there is no result and the thread
/// is abandoned until the process ends, which is soon. From then on the task must not use any
/// object of the caller.
template <typename Result, typename ShouldAbandon>
std::optional<Result> run_in_abandonable_thread(std::packaged_task<Result()> task,
                                                std::chrono::milliseconds check_interval,
                                                ShouldAbandon should_abandon) {
  std::future<Result> result = task.get_future();
  std::thread thread(std::move(task));
  while (result.wait_for(check_interval) != std::future_status::ready) {
    if (!should_abandon()) continue;
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return result.get();
}

}  // namespace ftrun
