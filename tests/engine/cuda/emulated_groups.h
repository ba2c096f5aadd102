#pragma once

#include <memory>

#include "../emulated_gpu.h"
#include "mesh_on_gpu.h"

namespace ftrun::testing {

/// Connects the groups of ranks on emulated GPUs by the emulated NCCL. `network` is borrowed.
inline GroupOnGpu emulated_groups(EmulatedNetwork& network) {
  return [&network](Gpu& gpu, const Communicator& like) {
    // The emulated network finds a group's links by the group's name.
    return std::make_unique<EmulatedNccl>(dynamic_cast<EmulatedGpu&>(gpu.kernels()),
                                          network.of(like), like,
                                          EmulatedNcclOptions{.suffix = ""});
  };
}

}  // namespace ftrun::testing
