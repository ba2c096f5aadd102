#include "base/bounded_queue.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using std::chrono::milliseconds;

TEST_CASE("a queue returns items in the order in which they were pushed") {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i) REQUIRE(queue.push(i));
  for (int i = 0; i < 3; ++i) CHECK(queue.pop() == i);
}

TEST_CASE("a queue takes and returns items that can only be moved") {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  REQUIRE(queue.push(std::make_unique<int>(7)));
  CHECK(**queue.pop() == 7);
}

TEST_CASE("a producer is never more than the capacity ahead of its consumer") {
  BoundedQueue<int> queue(2);
  std::atomic<int> pushed{0};
  std::thread producer([&] {
    for (int i = 0; i < 100; ++i) {
      queue.push(i);
      pushed = i + 1;
    }
  });
  bool in_order = true;
  bool bounded = true;
  for (int i = 0; i < 100; ++i) {
    in_order = in_order && queue.pop() == i;
    bounded = bounded && pushed <= i + 1 + 2 + 1;
  }
  producer.join();
  CHECK(in_order);
  CHECK(bounded);
}

TEST_CASE("a push into a full queue waits until there is space") {
  BoundedQueue<int> queue(1);
  REQUIRE(queue.push(1));
  std::atomic<bool> done{false};
  std::thread producer([&] {
    queue.push(2);
    done = true;
  });
  std::this_thread::sleep_for(milliseconds(30));
  const bool early = done;
  CHECK(queue.pop() == 1);
  producer.join();
  CHECK_FALSE(early);
  CHECK(queue.pop() == 2);
}

TEST_CASE("a closed queue returns what is left, then nothing, and accepts no more") {
  BoundedQueue<int> queue(4);
  queue.push(1);
  queue.push(2);
  queue.close();
  CHECK_FALSE(queue.push(3));
  CHECK(queue.pop() == 1);
  CHECK(queue.pop() == 2);
  CHECK_FALSE(queue.pop());
}

TEST_CASE("closing wakes a consumer of an empty queue and a producer of a full one") {
  BoundedQueue<int> empty(1);
  BoundedQueue<int> full(1);
  full.push(0);
  std::atomic<int> nothing{0};
  std::thread consumer([&] { nothing += empty.pop() ? 0 : 1; });
  std::thread producer([&] { nothing += full.push(1) ? 0 : 1; });
  std::this_thread::sleep_for(milliseconds(20));
  empty.close();
  full.close();
  consumer.join();
  producer.join();
  CHECK(nothing == 2);
}

TEST_CASE("every item reaches exactly one of many consumers") {
  BoundedQueue<int> queue(3);
  constexpr int kItems = 400;
  std::vector<std::vector<int>> got(3);
  std::vector<std::thread> consumers;
  for (auto& mine : got)
    consumers.emplace_back([&] {
      while (auto item = queue.pop()) mine.push_back(*item);
    });
  std::vector<std::thread> producers;
  for (int p = 0; p < 2; ++p)
    producers.emplace_back([&queue, p] {
      for (int i = p; i < kItems; i += 2) queue.push(i);
    });
  for (std::thread& producer : producers) producer.join();
  queue.close();
  for (std::thread& consumer : consumers) consumer.join();
  std::vector<int> seen(kItems, 0);
  for (const auto& mine : got)
    for (const int item : mine) ++seen[static_cast<size_t>(item)];
  CHECK(seen == std::vector<int>(kItems, 1));
}

}  // namespace
}  // namespace ftrun
