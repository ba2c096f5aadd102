#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace ftrun {

/// Runs in its own thread a task that may wait for peers without end, and checks every `slice`
/// whether it is `hopeless()`. If so, there is no result and the thread is abandoned until the
/// process ends, which is soon. From then on the task must not use any object of the caller.
template <typename Result, typename Hopeless>
std::optional<Result> run_in_abandonable_thread(std::packaged_task<Result()> task,
                                                std::chrono::milliseconds slice,
                                                Hopeless hopeless) {
  std::future<Result> result = task.get_future();
  std::thread thread(std::move(task));
  while (result.wait_for(slice) != std::future_status::ready) {
    if (!hopeless()) continue;
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return result.get();
}

}  // namespace ftrun
