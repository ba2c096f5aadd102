#include "base/rank_error.h"
#include "emulated_groups.h"
#include "engine/compare_kernels.h"
#include "gpu_under_test.h"
#include "kernels/kernels.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

// These tests run pipeline stages with the CUDA kernels on emulated GPUs: a receive waits in its
// stream until the message arrives, while the host continues.

namespace ftrun {
namespace {

using testing::EmulatedGpu;
using testing::EmulatedNetwork;

TEST_CASE("cuda mesh: stages of a pipeline get the CPU's losses and weights, with every schedule") {
  set_kernel_threads(1);
  const ModelConfig model = testing::with_layers(testing::small_model(true), 4);
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
        PipelineSchedule::kZbH1, PipelineSchedule::kZbV}) {
    INFO(name_of(schedule));
    Config config = testing::config_of_stage(schedule == PipelineSchedule::kZbH1 ? 0 : 1);
    config.bf16.enabled = schedule == PipelineSchedule::kGpipe;
    config.parallel.schedule = schedule;
    const bool two_chunks =
        schedule == PipelineSchedule::kInterleaved || schedule == PipelineSchedule::kZbV;
    config.parallel.virtual_stages = two_chunks ? 2 : 1;
    EmulatedNetwork network;
    testing::compare_on_mesh(
        config, model, {.stages = 2, .micro_batches = schedule == PipelineSchedule::kGpipe ? 2 : 4},
        testing::emulated_groups(network));
  }
}

TEST_CASE("cuda mesh: tensor ranks and shards within stages get the CPU's losses and weights") {
  set_kernel_threads(1);
  Config config = testing::config_of_stage(2);
  config.parallel.schedule = PipelineSchedule::k1F1B;
  config.parallel.virtual_stages = 1;
  config.zero.overlap_comm = true;
  const ModelConfig model = testing::with_layers(testing::small_model(), 4);
  for (const testing::TrainingMesh& mesh :
       {testing::TrainingMesh{.tensor = 2, .stages = 2, .micro_batches = 2},
        {.shards = 2, .stages = 2, .micro_batches = 4},
        {.tensor = 2, .shards = 2, .stages = 2, .micro_batches = 4}}) {
    EmulatedNetwork network;
    testing::compare_on_mesh(config, model, mesh, testing::emulated_groups(network));
  }
}

TEST_CASE(
    "cuda: an operation whose result on a GPU differs from the CPU's ends the run before its first "
    "step") {
  set_kernel_threads(1);
  Config config = testing::config_of_stage(0);
  config.device = DeviceKind::kCuda;
  for (const OpKind kind : {OpKind::kLinear, OpKind::kAttentionDgrad, OpKind::kGatedActivation}) {
    const std::unique_ptr<Gpu> gpu = testing::open_gpu_under_test();
    dynamic_cast<EmulatedGpu&>(gpu->kernels()).corrupt_results_of(kind);
    try {
      compare_kernels(config, testing::small_model(), 0, *gpu);
      FAIL("no error");
    } catch (const RankError& error) {
      REQUIRE(error.code() == ExitCode::kEnvironment);
      REQUIRE(error.is_device_failure());
      REQUIRE_THAT(error.message(),
                   Catch::Contains(cat("computes ", op_name(kind), " of ")) &&
                       Catch::Contains(" differently from the CPU: relative difference "));
      REQUIRE_THAT(error.remedy(), Catch::StartsWith("set device: cpu"));
    }
  }
}

}  // namespace
}  // namespace ftrun
