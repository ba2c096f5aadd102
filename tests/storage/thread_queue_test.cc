#include "storage/thread_queue.h"

#include "few_threads.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("a queue whose threads the system refuses throws an error and ends those that run") {
  if (!testing::kCanRefuseThreads) return;
  CHECK(testing::error_with_few_threads([] { const ThreadQueue queue(-1, 32); }) ==
        "the system starts no further thread: Resource temporarily unavailable");
}

}  // namespace
}  // namespace ftrun
