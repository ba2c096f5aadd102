#include "storage/thread_queue.h"

#include "few_threads.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

#if FTRUN_CAN_REFUSE_THREADS
TEST_CASE("a queue whose threads the system refuses throws an error and ends those that run") {
  CHECK(testing::error_with_few_threads([] { const ThreadQueue queue(-1, 32); }) ==
        "the system cannot start another thread: Resource temporarily unavailable");
}
#endif

}  // namespace
}  // namespace ftrun
