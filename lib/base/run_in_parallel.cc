#include "base/run_in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cores.h"

namespace ftrun {

void run_in_parallel(size_t count, const std::function<void(size_t)>& work, size_t max_threads) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  const size_t cores = std::min(max_threads, static_cast<size_t>(count_usable_cores()));
  try {
    for (size_t t = 1; t < std::min(cores, count); ++t) threads.emplace_back(run);
  } catch (const std::system_error&) {
    // If a thread cannot be started, fewer threads do the same work.
  }
  run();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace ftrun
