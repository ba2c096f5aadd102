#include "base/detachable_thread.h"

#include <atomic>
#include <future>
#include <memory>

#include "waiting.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("a thread that ends within the time limit is joined once") {
  bool has_run = false;
  DetachableThread thread([&] { has_run = true; }, std::chrono::minutes(2));
  CHECK(thread.join_or_detach());
  CHECK(has_run);
  CHECK(thread.join_or_detach());
  thread.join();
}

TEST_CASE("a thread that does not end within the time limit is detached and keeps what it owns") {
  const auto released = std::make_shared<std::promise<void>>();
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  {
    DetachableThread thread(
        [released, ended] {
          released->get_future().wait();
          *ended = true;
        },
        std::chrono::milliseconds(1));
    CHECK_FALSE(thread.join_or_detach());
  }
  CHECK_FALSE(*ended);
  released->set_value();
  testing::await_that([&] { return ended->load(); }, "the end of the thread");
}

}  // namespace
}  // namespace ftrun
