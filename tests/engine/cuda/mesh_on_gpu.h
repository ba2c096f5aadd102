#pragma once

#include <functional>
#include <memory>

#include "../mesh_runs.h"
#include "comm/communicator.h"
#include "engine/gpu.h"

namespace ftrun::testing {

/// GroupOnGpu makes a rank's communicator on its GPU with the members of `like`, the host's group.
using GroupOnGpu = std::function<std::unique_ptr<Communicator>(Gpu& gpu, const Communicator& like)>;

/// Requires that ranks which compute with the CUDA kernels, all on the GPU under test, train the
/// same losses, norms and weights as ranks of the same mesh on the CPU. The tolerance depends on
/// the precision: 16 bits are compared less strictly than fp32.
void compare_on_mesh(Config config, const ModelConfig& model, const TrainingMesh& mesh,
                     const GroupOnGpu& connect);

}  // namespace ftrun::testing
