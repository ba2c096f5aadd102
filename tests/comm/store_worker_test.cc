#include "comm/store_worker.h"

#include <atomic>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

/// Makes the worker wait for `pause`, and stops waiting for that operation. The worker does not
/// start an operation that is late already, so the call is repeated until it has started.
void keep_waiting(StoreWorker& worker, const std::shared_future<void>& pause) {
  const auto began = std::make_shared<std::atomic<bool>>(false);
  const auto wait = [began, pause] { return *began = true, pause.wait(), 1; };
  while (!*began) REQUIRE(worker.run(wait, 5ms) == std::nullopt);
}

}  // namespace

TEST_CASE("a worker returns the result of an operation, or throws its exception") {
  StoreWorker worker;
  REQUIRE(worker.run([] { return 7; }, 60s) == 7);
  const auto broken = []() -> int { throw std::runtime_error("closed"); };
  REQUIRE_THROWS_WITH(worker.run(broken, 60s), "closed");
}

TEST_CASE("after a pause of the server the late operation is waited for, and the next one runs") {
  std::promise<void> goes_on;
  StoreWorker worker;
  keep_waiting(worker, goes_on.get_future().share());
  // While the server is silent no further operation is tried, and those that were not tried are not
  // repeated later.
  std::atomic<int> tried = 0;
  const auto count = [&tried] { return ++tried; };
  REQUIRE(worker.run(count, 50ms) == std::nullopt);
  REQUIRE(tried == 0);
  goes_on.set_value();
  REQUIRE(worker.run(count, 60s) == 1);
  REQUIRE(worker.run(count, 60s) == 2);
}

TEST_CASE(
    "a store worker counts as stuck after an operation has timed out, until that operation ends") {
  StoreWorker worker;
  std::promise<void> server_goes_on;
  REQUIRE_FALSE(worker.is_stuck(0ms));
  keep_waiting(worker, server_goes_on.get_future().share());
  REQUIRE(worker.is_stuck(1ms));
  server_goes_on.set_value();
  REQUIRE_FALSE(worker.is_stuck(20s));
}

TEST_CASE("operations of two threads on a silent server all return in time, and recover") {
  std::promise<void> goes_on;
  StoreWorker worker;
  const auto paused = [pause = goes_on.get_future().share()] { return pause.wait(), 1; };
  std::vector<std::optional<int>> results(2);
  std::vector<std::thread> threads;
  for (std::optional<int>& result : results)
    threads.emplace_back([&] { result = worker.run(paused, 100ms); });
  for (std::thread& thread : threads) thread.join();
  for (const std::optional<int>& result : results) REQUIRE_FALSE(result.has_value());
  goes_on.set_value();
  REQUIRE(worker.run([] { return 3; }, 60s) == 3);
}

TEST_CASE("a worker whose operation never returns does not hold up its owner") {
  std::promise<void> never;  // must outlive the worker
  StoreWorker worker;
  keep_waiting(worker, never.get_future().share());
}
