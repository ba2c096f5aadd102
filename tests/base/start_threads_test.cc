#include "base/start_threads.h"

#include <array>
#include <atomic>

#include "few_threads.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("each started thread gets its own number") {
  std::array<std::atomic<int>, 3> calls = {};
  for (std::thread& thread : start_threads(
           calls.size(), [&](size_t i) { ++calls[i]; }, [] {}))
    thread.join();
  for (const std::atomic<int>& count : calls) CHECK(count == 1);
}

#if FTRUN_CAN_REFUSE_THREADS
TEST_CASE("if the system refuses a thread, those that run are stopped and the refusal is an error",
          "[threads]") {
  const std::string message = testing::error_with_few_threads([] {
    std::atomic<bool> stopped = false;
    std::atomic<int> running = 0;
    try {
      start_threads(
          64,
          [&](size_t) {
            ++running;
            stopped.wait(false);
            --running;
          },
          [&] {
            stopped = true;
            stopped.notify_all();
          });
    } catch (const Error& error) {
      throw Error(error.code(), cat(error.message(), "; ", running.load(), " still run"));
    }
  });
  CHECK(message ==
        "the system cannot start another thread: Resource temporarily unavailable; 0 still run");
}
#endif

}  // namespace
}  // namespace ftrun
