#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "engine/executor.h"
#include "engine/host_device.h"
#include "kernels/kernels.h"
#include "rank_fixture.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::overwrite_weight;
using testing::RankFixture;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Runs a step on the fixture's current batches. The step must not be finite and must change
/// nothing. Returns the message in which this rank names where it found the value.
std::string nonfinite_message(RankFixture& fixture, StepRun run) {
  const auto before = testing::saved_contents(fixture.state);
  fixture.train_executor.run(run);
  require(!run.result.finite, "the step is not finite");
  const std::string place = fixture.train_executor.find_nonfinite(run).text;
  require(!run.result.finite, "nor is it when it is run again");
  require(testing::saved_contents(fixture.state) == before, "no state has changed");
  return place;
}

Config run_nonfinite_in(int64_t stage, bool bf16 = false) {
  Config config = testing::config_of_stage(stage);
  config.bf16.enabled = bf16;
  return config;
}

TEST_CASE("an array is finite only if each of its numbers is") {
  HostDevice device;
  std::vector<double> numbers = {1, 1e300, -1e300, 0};
  const TypedSpan span{reinterpret_cast<std::byte*>(numbers.data()), DType::kF64, 4};
  CHECK(device.is_finite(Lane::kCompute, span));
  for (double& number : numbers) {
    const double finite = std::exchange(number, std::numeric_limits<double>::infinity());
    CHECK_FALSE(device.is_finite(Lane::kCompute, span));
    number = finite;
  }
}

TEST_CASE("a weight that is not a number is reported where its layer first computes with it") {
  set_kernel_threads(1);
  for (const int64_t stage : {0, 1, 2, 3})
    for (const bool bf16 : {false, true})
      for (const RecomputeLevel recompute : {RecomputeLevel::kNone, RecomputeLevel::kFull}) {
        INFO("stage " << stage << (bf16 ? " bf16" : " fp32") << " recompute "
                      << name_of(recompute));
        Config config = run_nonfinite_in(stage, bf16);
        config.recompute.policy = recompute;
        testing::SingleRank single_rank;
        RankFixture fixture(config, testing::small_model(), *single_rank.group);
        fixture.train(1);
        const std::string name = "model.layers.1.mlp.up_proj.weight";
        overwrite_weight(fixture, name, 7, kNan);
        REQUIRE(nonfinite_message(fixture, fixture.prepare_step(2)) ==
                "forward layer 2 mb 0 (layers.1): sum; the weight " + name + " is not finite");
        overwrite_weight(fixture, name, 7, 0.0F);
        REQUIRE(fixture.train(3).result.finite);
      }
}

TEST_CASE("a value that is not a number is also located in the embedding and in the head") {
  testing::SingleRank single_rank;
  RankFixture fixture(run_nonfinite_in(0), testing::small_model(), *single_rank.group);
  fixture.train(1);
  const int32_t token = fixture.batches[1].tokens[3];
  overwrite_weight(fixture, "lm_head.weight", 5, kNan);
  REQUIRE(nonfinite_message(fixture, fixture.prepare_step(2)) ==
          "forward layer 3 mb 0 (head): loss; the weight lm_head.weight is not finite");
  overwrite_weight(fixture, "lm_head.weight", 5, 0.1F);
  // A row of the embedding is read only where its token occurs: the first micro-batch that has the
  // token reports the value.
  for (MicroBatch& batch : fixture.batches)
    for (int32_t& id : batch.tokens)
      if (id == token) id = token == 0 ? 1 : 0;
  fixture.batches[1].tokens[3] = token;
  overwrite_weight(fixture, "model.embed_tokens.weight", token * 16, kNan);
  REQUIRE(nonfinite_message(fixture, fixture.prepare_step(2)) ==
          "forward layer 0 mb 1 (embed): embedding; the weight model.embed_tokens.weight is not "
          "finite");
}

TEST_CASE("an infinity in the loss is located in the head") {
  testing::SingleRank single_rank;
  RankFixture fixture(run_nonfinite_in(0), testing::small_model(), *single_rank.group);
  fixture.train(1);
  for (int64_t i = 0; i < 16; ++i)
    overwrite_weight(fixture, "lm_head.weight", i, std::numeric_limits<float>::infinity());
  REQUIRE(nonfinite_message(fixture, fixture.prepare_step(2)) ==
          "forward layer 3 mb 0 (head): loss; the weight lm_head.weight is not finite");
}

TEST_CASE("a gradient that overflows in backward is named with its layer and micro-batch") {
  for (const int64_t stage : {0, 2, 3}) {
    INFO("stage " << stage);
    testing::SingleRank single_rank;
    Config config = run_nonfinite_in(stage);
    RankFixture fixture(config, testing::small_model(), *single_rank.group);
    fixture.train(1);
    // The loss is finite at any scale. The backward pass of the first norm divides gradients by the
    // size of its input, so with a tiny embedding the smallest scale that overflows does so in that
    // norm.
    for (int64_t i = 0; i < 32 * 16; ++i)
      overwrite_weight(fixture, "model.embed_tokens.weight", i,
                       1e-4F * testing::weight_of("model.embed_tokens.weight", i));
    StepRun run = fixture.prepare_step(2);
    run.scalars.learning_rate = 0;
    for (run.scalars.token_loss_factor = 1e28F; run.result.finite;
         run.scalars.token_loss_factor *= 4) {
      REQUIRE(run.scalars.token_loss_factor < 1e37F);
      fixture.train_executor.run(run);
    }
    run.scalars.token_loss_factor /= 4;
    const std::string place = nonfinite_message(fixture, run);
    REQUIRE_THAT(place,
                 Catch::StartsWith("backward layer 1 mb ") && Catch::Contains(" (layers.0): d_"));
    run = fixture.prepare_step(2);
    fixture.train_executor.run(run);
    REQUIRE(run.result.finite);
  }
}

TEST_CASE(
    "an fp16 step at too large a loss scale is named in backward; at a smaller one it trains") {
  testing::SingleRank single_rank;
  Config config = testing::config_of_stage(2);
  config.fp16.enabled = true;
  RankFixture fixture(config, testing::small_model(), *single_rank.group);
  fixture.train(1);
  StepRun run = fixture.prepare_step(2);
  run.scalars.token_loss_factor = 1e9F;
  run.policy = step_policy({.gradient_divisor = 1e11, .clip_norm = 1.0});
  // The head computes the first gradients, within the operations of its forward pass.
  REQUIRE_THAT(nonfinite_message(fixture, run),
               Catch::Contains(" mb 0 (") && Catch::Contains("d_"));
  run = fixture.prepare_step(2);
  run.scalars.token_loss_factor = 10.0F;
  run.policy = step_policy({.gradient_divisor = 1000, .clip_norm = 1.0});
  const auto before = testing::saved_contents(fixture.state);
  fixture.train_executor.run(run);
  REQUIRE(run.result.finite);
  REQUIRE(testing::saved_contents(fixture.state) != before);
}

TEST_CASE("a search that fails leaves the next step to train as any other") {
  testing::SingleRank single_rank;
  RankFixture fixture(run_nonfinite_in(0), testing::small_model(), *single_rank.group);
  fixture.train(1);
  const auto before = testing::saved_contents(fixture.state);
  fixture.batches[1].tokens.pop_back();
  StepRun run = fixture.prepare_step(2);
  REQUIRE_THROWS_WITH(fixture.train_executor.find_nonfinite(run),
                      Catch::Contains("a batch part has 60 bytes, its buffer 64"));
  REQUIRE(testing::saved_contents(fixture.state) == before);
  REQUIRE(fixture.train(2).result.finite);
  REQUIRE(testing::saved_contents(fixture.state) != before);
}

TEST_CASE("a step that is finite when it is run again changes nothing") {
  for (const int64_t stage : {0, 2, 3}) {
    INFO("stage " << stage);
    testing::SingleRank single_rank;
    RankFixture fixture(run_nonfinite_in(stage), testing::small_model(), *single_rank.group);
    fixture.train(1);
    const std::string name = "model.layers.1.mlp.up_proj.weight";
    overwrite_weight(fixture, name, 7, kNan);
    StepRun run = fixture.prepare_step(2);
    fixture.train_executor.run(run);
    REQUIRE_FALSE(run.result.finite);
    overwrite_weight(fixture, name, 7, 0.0F);
    const auto before = testing::saved_contents(fixture.state);
    REQUIRE(fixture.train_executor.find_nonfinite(run).text == "");
    REQUIRE(run.result.finite);
    REQUIRE(testing::saved_contents(fixture.state) == before);
    // The next step trains again.
    REQUIRE(fixture.train(3).result.finite);
    REQUIRE(testing::saved_contents(fixture.state) != before);
  }
}

TEST_CASE("a step that is run again has the same dropout masks as before") {
  testing::SingleRank single_rank;
  testing::RankFixture fixture(testing::with_dropout(testing::config_of_stage(2)),
                               testing::small_model(), *single_rank.group);
  fixture.train(1);
  const auto before = testing::saved_contents(fixture.state);
  StepRun again = fixture.prepare_step(2), first = fixture.prepare_step(2),
          other = fixture.prepare_step(3);
  REQUIRE(fixture.train_executor.find_nonfinite(again).instr == -1);
  REQUIRE(fixture.train_executor.find_nonfinite(other).instr == -1);
  REQUIRE(testing::saved_contents(fixture.state) == before);
  fixture.train_executor.run(first);
  REQUIRE(again.result.loss_sum == first.result.loss_sum);
  REQUIRE(again.result.gradient_norm == first.result.gradient_norm);
  REQUIRE(other.result.loss_sum != first.result.loss_sum);
}

TEST_CASE("only the rank with a value that is not finite names it, and all ranks skip the step") {
  for (const int64_t stage : {0, 1, 2}) {
    INFO("stage " << stage);
    std::vector<std::string> places(3);
    testing::require_no_failures(testing::errors_on_ranks(3, [&](Rendezvous&, Communicator& group) {
      RankFixture fixture(run_nonfinite_in(stage), testing::small_model(), group);
      fixture.train(1);
      // At these stages each rank has its own copy of all parameters, so only rank 1 has the NaN.
      if (group.rank() == 1)
        overwrite_weight(fixture, "model.layers.0.self_attn.q_proj.weight", 3, kNan);
      const auto before = testing::saved_slices(fixture.state);
      StepRun run = fixture.prepare_step(2);
      fixture.train_executor.run(run);
      require(!run.result.finite, "every rank decides alike");
      places[static_cast<size_t>(group.rank())] = fixture.train_executor.find_nonfinite(run).text;
      require(testing::saved_slices(fixture.state) == before, "no state has changed");
    }));
    REQUIRE(places[0] == "");
    REQUIRE(places[1] ==
            "forward layer 1 mb 0 (layers.0): sum; "
            "the weight model.layers.0.self_attn.q_proj.weight is not finite");
    REQUIRE(places[2] == "");
  }
}

TEST_CASE("a shard that is not finite is reported by every rank that gathers it") {
  std::vector<std::string> places(2);
  testing::require_no_failures(testing::errors_on_ranks(2, [&](Rendezvous&, Communicator& group) {
    RankFixture fixture(run_nonfinite_in(3), testing::model_of_many_blocks(), group);
    fixture.train(1);
    overwrite_weight(fixture, "model.layers.2.mlp.down_proj.weight", 64 * 160 - 1, kNan);
    StepRun run = fixture.prepare_step(2);
    fixture.train_executor.run(run);
    require(!run.result.finite, "every rank decides alike");
    places[static_cast<size_t>(group.rank())] = fixture.train_executor.find_nonfinite(run).text;
  }));
  for (const std::string& place : places)
    REQUIRE(place ==
            "forward layer 3 mb 0 (layers.2): sum; "
            "the weight model.layers.2.mlp.down_proj.weight is not finite");
}

/// Runs a step on two tensor-parallel ranks, one of which has a weight that is NaN. Returns what
/// each rank found.
std::vector<NonfiniteLocation> locations_on_tensor_ranks(const std::string& name, int64_t index,
                                                         int poisoned, bool sequence) {
  std::vector<NonfiniteLocation> locations(2);
  StateOptions mesh;
  mesh.tensor.count = 2;
  testing::run_on_mesh(mesh, [&](Rendezvous& rendezvous, const RankCommunicators& communicators) {
    Config config = run_nonfinite_in(0);
    config.parallel.tensor = 2;
    config.parallel.sequence = sequence;
    RankFixture fixture(config, testing::small_model(), communicators);
    fixture.train(1);
    if (rendezvous.rank() == poisoned) overwrite_weight(fixture, name, index, kNan);
    StepRun run = fixture.prepare_step(2);
    fixture.train_executor.run(run);
    require(!run.result.finite, "every rank decides alike");
    locations[static_cast<size_t>(rendezvous.rank())] = fixture.train_executor.find_nonfinite(run);
  });
  return locations;
}

TEST_CASE("a tensor-parallel rank names a weight of its own before the others get the sum") {
  set_kernel_threads(1);
  struct Weight {
    std::string tensor;
    std::string layer;
  };
  const std::vector<Weight> weights{
      {"model.layers.0.self_attn.q_proj.weight", "forward layer 1 mb 0 (layers.0): "},
      {"model.layers.0.self_attn.o_proj.weight", "forward layer 1 mb 0 (layers.0): "},
      {"model.layers.1.input_layernorm.weight", "forward layer 2 mb 0 (layers.1): "},
      {"model.layers.1.mlp.up_proj.weight", "forward layer 2 mb 0 (layers.1): "},
      {"model.layers.1.mlp.down_proj.weight", "forward layer 2 mb 0 (layers.1): "},
      {"lm_head.weight", "forward layer 3 mb 0 (head): "}};
  for (const bool sequence : {true, false})
    for (const int poisoned : {0, 1})
      for (const Weight& weight : weights) {
        INFO(weight.tensor << " of rank " << poisoned << (sequence ? "" : ", whole norms"));
        const auto locations = locations_on_tensor_ranks(weight.tensor, 5, poisoned, sequence);
        const NonfiniteLocation& own = locations[static_cast<size_t>(poisoned)];
        REQUIRE_THAT(own.text,
                     Catch::StartsWith(weight.layer) &&
                         Catch::EndsWith("; the weight " + weight.tensor + " is not finite"));
        // The other rank finds the value later, in the sum over ranks, if its own layers still
        // compute with the sum.
        const NonfiniteLocation& other = locations[static_cast<size_t>(1 - poisoned)];
        REQUIRE((other.instr < 0 || other.instr > own.instr));
        REQUIRE(other.text.find("the weight") == std::string::npos);
      }
}

}  // namespace
}  // namespace ftrun
