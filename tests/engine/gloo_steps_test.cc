#include <functional>
#include <thread>

#include "data/counting_new.h"
#include "kernels/kernels.h"
#include "rank_fixture.h"
#include "training/scheduled_scalars.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// Returns how many allocations of all ranks are alive between collectives. Gloo's threads free
/// their memory shortly after a collective ends, so the function waits a moment first.
int64_t allocations_between_collectives(Communicator& group) {
  group.barrier({"rest"});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int64_t alive = testing::allocations_alive();
  group.barrier({"go on"});
  return alive;
}

// c10d makes a Work, a Future and tensor objects for each operation of a ProcessGroupGloo, and Gloo
// makes bookkeeping for its buffers: about 150 small objects per collective, none of which ftrun
// controls. Over shared memory a step allocates nothing at all (executor_test.cc). Over Gloo a test
// can only require that these objects are freed again.
TEST_CASE("over Gloo, which allocates for each collective, steps leave nothing allocated") {
  constexpr int kSteps = 40;
  set_kernel_threads(1);
  Config config = testing::small_run_config();
  config.zero.reduce_bucket_size = 1000;
  int64_t grown = -1;
  int64_t collectives = 0;
  const auto failures = testing::errors_on_ranks(
      2,
      [&](Rendezvous&, Communicator& group) {
        testing::RankFixture fixture(config, testing::small_model(), group);
        for (int64_t step = 1; step <= 4; ++step) fixture.train(step);
        const int64_t calls = group.stats().total().calls;
        const int64_t before = allocations_between_collectives(group);
        for (int64_t step = 5; step < 5 + kSteps; ++step) fixture.train(step);
        const int64_t after = allocations_between_collectives(group);
        if (group.rank() != 0) return;
        grown = after - before;
        collectives = group.stats().total().calls - calls;
      },
      std::chrono::hours(1), CommBackend::kGloo);
  for (const std::string& failure : failures) REQUIRE(failure.empty());
  REQUIRE(collectives >= 4 * kSteps);
  // If each collective of each rank kept one object, there would be 2 · `collectives` more. Some
  // objects of the last collectives may not be destroyed yet.
  INFO(grown << " allocations more after " << collectives << " collectives a rank");
  REQUIRE(grown < collectives);
}

}  // namespace
}  // namespace ftrun
