#include "kernels/kernels.h"
#include "mesh_on_gpu.h"
#include "staged_group.h"

#include <catch2/catch.hpp>

// These tests run tensor ranks and shards with the CUDA kernels, all on the one GPU that the
// machine has: their collectives go through host memory.

namespace ftrun {
namespace {

TEST_CASE("cuda mesh: tensor ranks get the CPU's losses and weights, also sharded and offloaded") {
  set_kernel_threads(1);
  testing::Mailbox mailbox;
  const testing::GroupOnGpu staged = [&](Gpu& gpu, const Communicator& like) {
    return std::make_unique<testing::StagedGroup>(gpu, mailbox, like);
  };
  const ModelConfig model = testing::model_of_many_blocks();
  for (const auto& [stage, device] : {std::pair(0, OffloadDevice::kNone),
                                      {1, OffloadDevice::kCpu},
                                      {2, OffloadDevice::kNvme},
                                      {3, OffloadDevice::kNone}}) {
    Config config = testing::config_of_stage(stage);
    testing::offload_to(config, device);
    config.bf16.enabled = stage == 0;
    testing::compare_on_mesh(config, model, {.tensor = 2, .micro_batches = 2}, staged);
  }
  Config config = testing::config_of_stage(3);
  config.parallel.sequence = false;
  config.recompute.policy = RecomputeLevel::kFull;
  testing::compare_on_mesh(config, model, {.tensor = 2, .shards = 2, .micro_batches = 2}, staged);
}

}  // namespace
}  // namespace ftrun
