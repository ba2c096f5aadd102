#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace ftrun {

/// Runs in a thread a task that may wait for peers without end, and checks every `slice` whether it
/// is `hopeless()`: then there is no result, and the thread is left to the end of the process,
/// which is near. It must use nothing of the caller's by then.
template <typename Result, typename Hopeless>
std::optional<Result> run_in_thread(std::packaged_task<Result()> task,
                                    std::chrono::milliseconds slice, Hopeless hopeless) {
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
