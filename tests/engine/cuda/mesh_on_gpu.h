#pragma once

#include <functional>
#include <memory>

#include "../mesh_runs.h"
#include "comm/communicator.h"
#include "engine/gpu.h"

namespace ftrun::fixtures {

/// GroupOnGpu makes a rank's group on its GPU from the one of hosts.
using GroupOnGpu = std::function<std::unique_ptr<Communicator>(Gpu& gpu, const Communicator& like)>;

/// Requires that ranks which compute with the CUDA kernels, all on the GPU under test, train the
/// losses, norms and weights of the processor's ranks of the same mesh. Precisions of 16 bits are
/// compared to the accuracy that they have.
void compare_on_mesh(Config config, const ModelConfig& model, const TrainingMesh& mesh,
                     const GroupOnGpu& connect);

}  // namespace ftrun::fixtures
