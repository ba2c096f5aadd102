#include "emulated_mesh.h"

#include <optional>

namespace ftrun::testing {

EmulatedRank::EmulatedRank(uint64_t seed, EmulatedNetwork& network, const RankCommunicators& host,
                           const GpuOptions& options)
    : device(new EmulatedGpu({.seed = seed})),
      gpu(std::unique_ptr<DeviceKernels>(device), options),
      communicators(host) {
  for (Communicator*& group : communicators.group_communicators) {
    // The emulated network finds a group's links by the group's name.
    nccl.push_back(std::make_unique<EmulatedNccl>(*device, network.of(*group), *group,
                                                  EmulatedNcclOptions{.suffix = ""}));
    group = nccl.back().get();
  }
}

TrainingOutcome train_on_emulated_mesh(const Config& plain, const ModelConfig& model,
                                       const TrainingMesh& mesh, uint64_t seed,
                                       const EmulatedMeshOptions& options) {
  const Config config = config_on_mesh(plain, mesh);
  EmulatedNetwork network;
  TrainingOutcome outcome;
  CombinedState whole;
  run_on_mesh(options_of(mesh, config, model),
              [&](Rendezvous& rendezvous, const RankCommunicators& host) {
                std::optional<EmulatedRank> rank_on_gpu;
                if (seed > 0)
                  rank_on_gpu.emplace(seed + 100 * static_cast<uint64_t>(rendezvous.rank()),
                                      network, host, options.gpu);
                RankFixture fixture(config, model, rank_on_gpu ? rank_on_gpu->communicators : host,
                                    rank_on_gpu ? &rank_on_gpu->gpu : nullptr);
                fixture.gradient_divisor = options.gradient_divisor;
                TrainingOutcome own;
                train_steps(fixture, options.steps, own);
                whole.add(fixture.state.slices());
                if (rank_on_gpu && options.launches != nullptr)
                  *options.launches += rank_on_gpu->device->counters().launches;
                if (rendezvous.rank() == 0) outcome = own;
              });
  outcome.state = whole.contents();
  return outcome;
}

}  // namespace ftrun::testing
