#include "exec/executor.h"

#include <cmath>
#include <csignal>
#include <cstring>

#include "data/counting_new.h"
#include "exec/nonfinite.h"
#include "exec/stop_signal.h"
#include "rig.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using fixtures::Alone;
using fixtures::RankRig;

std::vector<float> weights_of(const RankRig& rig) {
  std::vector<float> all;
  for (const StateSlice& slice : rig.state.slices(0, 1)) {
    const auto* begin = static_cast<const float*>(slice.data);
    all.insert(all.end(), begin, begin + (slice.end - slice.begin));
  }
  return all;
}

TEST_CASE("after the second step nothing is allocated any more") {
  set_kernel_threads(1);
  for (const int world : {1, 2}) {
    for (const bool overlap : {false, true}) {
      Config config = fixtures::small_run();
      config.zero.overlap_comm = overlap;
      config.zero.reduce_bucket_size = 1000;
      std::vector<int64_t> allocations(static_cast<size_t>(world), -1);
      const auto failures = fixtures::on_ranks(
          world,
          [&](Rendezvous&, Communicator& group) {
            RankRig rig(config, fixtures::small_model(), group);
            for (int64_t step = 1; step <= 2; ++step) rig.train(step);
            // The batches of the fixture are made anew each step; the step itself is what counts.
            StepRun run;
            run.micro_batches = rig.batches;
            run.scalars = step_scalars_of(config.optimizer, config.scheduler, 3);
            run.scalars.loss_scale = 0.01F;
            run.clip_norm = 1.0;
            run.optimizer = optimizer_options(config.optimizer);
            group.barrier({"begin"});
            const int64_t before = test::allocations_so_far();
            for (int step = 0; step < 4; ++step) rig.trainer.run(run);
            group.barrier({"end"});
            allocations[static_cast<size_t>(group.rank())] = test::allocations_so_far() - before;
          },
          std::chrono::hours(1));
      for (const std::string& failure : failures) REQUIRE(failure.empty());
      INFO(world << " ranks, overlap " << overlap);
      REQUIRE(allocations == std::vector<int64_t>(static_cast<size_t>(world), 0));
    }
  }
}

TEST_CASE("two ranks and one with twice the micro-batches take the same step, to rounding") {
  set_kernel_threads(1);
  std::vector<Batch> batches;
  for (uint64_t i = 0; i < 4; ++i) batches.push_back(fixtures::random_batch({2, 8}, i));
  const auto step = [&](RankRig& rig, std::span<const Batch> mine) {
    StepRun run;
    run.micro_batches = mine;
    run.scalars = step_scalars_of(rig.config.optimizer, rig.config.scheduler, 1);
    run.scalars.loss_scale = 1.0F / 64;
    run.clip_norm = 0.1;
    run.optimizer = optimizer_options(rig.config.optimizer);
    rig.trainer.run(run);
    return run;
  };
  Alone alone;
  Config four = fixtures::small_run();
  four.gradient_accumulation_steps = 4;
  RankRig single(four, fixtures::small_model(), *alone.group);
  const StepRun one = step(single, batches);
  REQUIRE(one.counted_tokens == 64);
  REQUIRE(one.finite);
  const auto failures = fixtures::on_ranks(2, [&](Rendezvous&, Communicator& group) {
    RankRig rig(fixtures::small_run(), fixtures::small_model(), group);
    const StepRun two = step(
        rig, std::span<const Batch>(batches).subspan(static_cast<size_t>(group.rank()) * 2, 2));
    require(two.counted_tokens == 64, "all ranks' tokens are counted");
    require(std::abs(two.loss_sum - one.loss_sum) < 1e-5 * one.loss_sum,
            "the loss is that of all ranks");
    require(std::abs(two.gradient_norm - one.gradient_norm) < 1e-5 * one.gradient_norm,
            "so is the norm");
    const std::vector<float> a = weights_of(rig), b = weights_of(single);
    for (size_t i = 0; i < a.size(); ++i) require(std::abs(a[i] - b[i]) < 1e-4F, "and the weights");
  });
  for (const std::string& failure : failures) REQUIRE(failure.empty());
}

TEST_CASE("all ranks see the sum of the votes to stop") {
  const auto failures = fixtures::on_ranks(3, [&](Rendezvous&, Communicator& group) {
    RankRig rig(fixtures::small_run(), fixtures::small_model(), group);
    rig.train(1);
    StepRun run;
    run.micro_batches = rig.batches;
    run.optimizer = optimizer_options(rig.config.optimizer);
    run.stop_votes = group.rank() == 1 ? stop_vote(SIGTERM) : 0.0;
    rig.trainer.run(run);
    require(voted_signal(run.stop_votes) == SIGTERM, "every rank stops");
    run.stop_votes = 0;
    rig.trainer.run(run);
    require(run.stop_votes == 0, "the votes of the step before are gone");
  });
  for (const std::string& failure : failures) REQUIRE(failure.empty());
}

TEST_CASE("a step whose loss or gradient is not finite changes no weight and no state") {
  Alone alone;
  RankRig rig(fixtures::small_run(), fixtures::small_model(), *alone.group);
  rig.train(1);
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  float* weight = nullptr;
  for (const StateSlice& slice : rig.state.slices(0, 1))
    if (slice.tensor == name && slice.kind == "param") weight = static_cast<float*>(slice.data);
  REQUIRE(weight != nullptr);
  REQUIRE(nonfinite_place(rig.plan.train.model, rig.plan.partition, rig.memory).empty());
  weight[7] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> before = weights_of(rig);
  const StepRun run = rig.train(2);
  REQUIRE_FALSE(run.finite);
  const std::vector<float> after = weights_of(rig);
  REQUIRE(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)) == 0);
  REQUIRE(nonfinite_place(rig.plan.train.model, rig.plan.partition, rig.memory) ==
          "the weight " + name + " is not finite");
  // With the weight mended, the gradients of the failed step are what is left to blame.
  weight[7] = 0;
  REQUIRE_THAT(nonfinite_place(rig.plan.train.model, rig.plan.partition, rig.memory),
               Catch::StartsWith("the gradient of lm_head.weight (and "));
  REQUIRE(rig.train(3).finite);
}

TEST_CASE("a rank that leaves ends the step of the others with its loss, not in a hang") {
  const auto failures = fixtures::on_ranks(2, [&](Rendezvous&, Communicator& group) {
    RankRig rig(fixtures::small_run(), fixtures::small_model(), group);
    rig.train(1);
    if (group.rank() == 1) throw Error(ExitCode::kBadInput, "this rank's data is bad");
    rig.train(2);
  });
  REQUIRE(failures[1] == "this rank's data is bad");
  REQUIRE_THAT(failures[0], Catch::Contains("lost a peer in all_reduce"));
}

TEST_CASE("a batch of another shape is a defect that is told, and the next step can run") {
  Alone alone;
  RankRig rig(fixtures::small_run(), fixtures::small_model(), *alone.group);
  rig.train(1);
  StepRun run;
  rig.batches[1].tokens.pop_back();
  run.micro_batches = rig.batches;
  run.optimizer = optimizer_options(rig.config.optimizer);
  REQUIRE_THROWS_WITH(rig.trainer.run(run),
                      Catch::Contains("a batch part has 60 bytes, its buffer 64"));
  REQUIRE(rig.train(2).finite);
}

}  // namespace
}  // namespace ftrun
