#include "mesh_on_gpu.h"

#include <optional>
#include <vector>

#include "gpu_under_test.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

constexpr int64_t kMeshSteps = 2;

/// A rank's Gpu object and its communicators on that GPU.
struct RankOnGpu {
  RankOnGpu(const RankCommunicators& host, const GroupOnGpu& connect)
      : gpu(open_gpu_under_test()), communicators(host) {
    for (Communicator*& group : communicators.group_communicators) {
      connected.push_back(connect(*gpu, *group));
      group = connected.back().get();
    }
  }
  std::unique_ptr<Gpu> gpu;
  std::vector<std::unique_ptr<Communicator>> connected;
  RankCommunicators communicators;
};

/// MeshTraining holds the result of training on a mesh, and the state from which it started.
struct MeshTraining {
  SavedState start;
  TrainingOutcome outcome;
};

/// Trains on the mesh: with the CUDA kernels, or on the CPU if `connect` is empty.
MeshTraining train_mesh(const Config& plain, const ModelConfig& model, const TrainingMesh& mesh,
                        const GroupOnGpu& connect) {
  Config config = config_on_mesh(plain, mesh);
  TrainingOutcome outcome;
  CombinedState start, whole;
  const StateOptions options = options_of(mesh, config, model);
  if (connect) config.device = DeviceKind::kCuda;
  run_on_mesh(options, [&](Rendezvous& rendezvous, const RankCommunicators& host) {
    std::optional<RankOnGpu> rank_on_gpu;
    if (connect) rank_on_gpu.emplace(host, connect);
    RankFixture fixture(config, model, rank_on_gpu ? rank_on_gpu->communicators : host,
                        rank_on_gpu ? rank_on_gpu->gpu.get() : nullptr);
    // Without the multiple, small gradients would be 0 in fp16.
    if (config.fp16.enabled) fixture.gradient_divisor = 4096;
    start.add(fixture.state.slices());
    TrainingOutcome own;
    train_steps(fixture, kMeshSteps, own);
    whole.add(fixture.state.slices());
    if (rendezvous.rank() == 0) outcome = own;
  });
  outcome.state = whole.contents();
  return {start.contents(), std::move(outcome)};
}

}  // namespace

void compare_on_mesh(Config config, const ModelConfig& model, const TrainingMesh& mesh,
                     const GroupOnGpu& connect) {
  const bool narrow = config.bf16.enabled || config.fp16.enabled;
  INFO(mesh.text() << ", stage " << config.zero.stage << (narrow ? ", 16 bits" : ""));
  // Adam divides by the size of a gradient: with its usual epsilon, rounding errors alone would
  // move weights.
  config.optimizer.eps = 1e-2;
  const auto [start, expected] = train_mesh(config, model, mesh, {});
  const TrainingOutcome found = train_mesh(config, model, mesh, connect).outcome;
  REQUIRE(expected.losses[0] != expected.losses[1]);
  const Differences all = differences(found, expected);
  REQUIRE(all.loss < (narrow ? 5e-4 : 1e-5));
  REQUIRE(all.norm < (narrow ? 2e-2 : 2e-4));
  // Two steps move most weights by less than 1e-2 and some by 2e-5. A bound on the difference alone
  // would therefore also accept ranks that train nothing, so the bound is relative to the movement.
  // Emulated GPUs differ by at most 0.4 of the movement (in 16 bits, for an adapter's matrix that
  // began as zeros), and by 8e-5 of it in fp32.
  const Differences moved = differences({expected.losses, expected.norms, start}, expected);
  for (const auto& [tensor, difference] : all.weights) {
    INFO(tensor);
    REQUIRE(difference < (narrow ? 5e-3 : 1e-4));
    REQUIRE(difference <= (narrow ? 0.75 : 0.05) * moved.weights.at(tensor));
  }
}

}  // namespace ftrun::testing
