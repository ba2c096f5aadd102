#include <atomic>

#include "emulated_mesh.h"
#include "kernels/kernels.h"

#include <catch2/catch.hpp>

// These tests run tensor ranks and pipeline stages on emulated GPUs, each with its own streams.
// Collectives of layers, sends and receives wait in the stream of their group until all ranks have
// reached them, however late. The results must have the bits of a training on the CPU.

namespace ftrun {
namespace {

using testing::EmulatedNetwork;
using testing::EmulatedRank;
using testing::RankFixture;
using testing::train_on_emulated_mesh;
using testing::TrainingMesh;
using testing::TrainingOutcome;

/// Returns a config of a ZeRO stage, with pipeline stages of one chunk each.
Config pipeline_config(int64_t stage) {
  Config config = testing::config_of_stage(stage);
  config.parallel.schedule = PipelineSchedule::k1F1B;
  config.parallel.virtual_stages = 1;
  return config;
}

void require_same_bits(const Config& config, const ModelConfig& model, const TrainingMesh& mesh) {
  INFO(mesh.text() << ", stage " << config.zero.stage);
  const TrainingOutcome expected = train_on_emulated_mesh(config, model, mesh, 0);
  REQUIRE(expected.losses[0] != expected.losses[1]);
  for (const uint64_t seed : {1, 2})
    REQUIRE(train_on_emulated_mesh(config, model, mesh, seed) == expected);
}

TEST_CASE("gpu mesh: tensor ranks get the CPU's bits") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  for (const int64_t stage : {0, 1, 3}) {
    Config config = testing::config_of_stage(stage);
    config.zero.overlap_comm = stage > 0;
    require_same_bits(config, model, {.tensor = 2, .micro_batches = 2});
    if (stage > 0) require_same_bits(config, model, {.tensor = 2, .shards = 2, .micro_batches = 2});
  }
}

TEST_CASE("gpu mesh: stages of a pipeline get the CPU's bits, with every schedule") {
  set_kernel_threads(1);
  const ModelConfig model = testing::with_layers(testing::small_model(true), 5);
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
        PipelineSchedule::kZbH1, PipelineSchedule::kZbV}) {
    Config config = testing::config_of_stage(1);
    config.parallel.schedule = schedule;
    const bool two_chunks =
        schedule == PipelineSchedule::kInterleaved || schedule == PipelineSchedule::kZbV;
    config.parallel.virtual_stages = two_chunks ? 2 : 1;
    INFO(name_of(schedule));
    require_same_bits(config, model, {.stages = 2, .micro_batches = 4});
  }
}

TEST_CASE("gpu mesh: tensor ranks within stages, sharded and offloaded, get the CPU's bits") {
  set_kernel_threads(1);
  const ModelConfig model = testing::with_layers(testing::small_model(), 5);
  Config config = pipeline_config(2);
  config.zero.overlap_comm = true;
  require_same_bits(config, model, {.tensor = 2, .shards = 2, .stages = 2, .micro_batches = 4});
  testing::offload_to(config, OffloadDevice::kCpu);
  require_same_bits(config, model, {.tensor = 2, .stages = 2, .micro_batches = 2});
}

TEST_CASE(
    "gpu mesh: steps with collectives give the same bits if they are captured once and started as "
    "a whole") {
  set_kernel_threads(1);
  const auto require_captured = [](const Config& config, const ModelConfig& model,
                                   const TrainingMesh& mesh) {
    INFO(mesh.text() << ", stage " << config.zero.stage);
    const TrainingOutcome expected = train_on_emulated_mesh(config, model, mesh, 0);
    for (const uint64_t seed : {3, 4}) {
      std::atomic<int64_t> launches = 0;
      REQUIRE(train_on_emulated_mesh(config, model, mesh, seed,
                                     {.gpu = {.step_graph = true}, .launches = &launches}) ==
              expected);
      // Each rank launches its second and third step, each in two parts: before and after the
      // decision.
      REQUIRE(launches == 4 * mesh.ranks());
    }
  };
  for (const int64_t stage : {0, 1, 2, 3}) {
    Config config = testing::config_of_stage(stage);
    config.zero.overlap_comm = true;
    const TrainingMesh whole{.replicas = 2, .micro_batches = 2},
        sharded{.shards = 3, .micro_batches = 3};
    require_captured(config, testing::model_of_many_blocks(), stage == 0 ? whole : sharded);
  }
  require_captured(testing::config_of_stage(1), testing::small_model(),
                   {.tensor = 2, .micro_batches = 2});
}

TEST_CASE("gpu mesh: groups are closed once the captures of their collectives are destroyed") {
  set_kernel_threads(1);
  const TrainingMesh mesh{.shards = 2, .micro_batches = 2};
  const ModelConfig model = testing::small_model();
  const Config config = testing::config_on_mesh(testing::config_of_stage(1), mesh);
  EmulatedNetwork network;
  std::atomic<int> closed = 0;
  testing::run_on_mesh(
      testing::options_of(mesh, config, model),
      [&](Rendezvous& rendezvous, const RankCommunicators& host) {
        EmulatedRank there(5 + static_cast<uint64_t>(rendezvous.rank()), network, host,
                           {.step_graph = true});
        RankFixture fixture(config, model, there.communicators, &there.gpu);
        TrainingOutcome outcome;
        testing::train_steps(fixture, 2, outcome);
        Communicator& group = *there.communicators.group_communicators[0];
        require(testing::error_text_of([&] {
                  group.shutdown();
                }).find("its collectives are held by 2 captured graphs") != std::string::npos,
                "a group that captured graphs hold is not closed");
        fixture.train_executor.drop_captures();
        group.shutdown();
        // The next step is captured again on both ranks, because its graphs were dropped.
        testing::train_steps(fixture, 1, outcome);
        fixture.train_executor.drop_captures();
        group.shutdown();
        ++closed;
      });
  REQUIRE(closed == 2);
}

}  // namespace
}  // namespace ftrun
