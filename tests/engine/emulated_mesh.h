#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulated_gpu.h"
#include "engine/gpu.h"
#include "mesh_runs.h"

namespace ftrun::testing {

/// EmulatedRank holds a rank's emulated GPU and its communicators there.
struct EmulatedRank {
  EmulatedRank(uint64_t seed, EmulatedNetwork& network, const RankCommunicators& host,
               const GpuOptions& options);
  EmulatedGpu* device;
  Gpu gpu;
  std::vector<std::unique_ptr<EmulatedNccl>> nccl;
  RankCommunicators communicators;
};

/// EmulatedMeshOptions are the options of the emulated GPUs of a mesh.
struct EmulatedMeshOptions {
  int64_t steps = 3;
  GpuOptions gpu = {};
  /// The value of RankFixture::gradient_divisor.
  float gradient_divisor = 1;
  /// A counter of the launches of captured steps on the devices of all ranks; null: not counted.
  std::atomic<int64_t>* launches = nullptr;
};

/// Trains some steps on a mesh of emulated GPUs. `seed` sets the order in which their streams
/// advance; 0 trains on the CPU.
TrainingOutcome train_on_emulated_mesh(const Config& plain, const ModelConfig& model,
                                       const TrainingMesh& mesh, uint64_t seed,
                                       const EmulatedMeshOptions& options = {});

}  // namespace ftrun::testing
