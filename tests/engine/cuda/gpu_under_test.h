#pragma once

#include <memory>

#include "engine/gpu.h"

namespace ftrun::testing {

/// Opens the GPU that whole training runs are tested on: a real one, or the CUDA kernels' sources
/// on the host. Error when there is none.
std::unique_ptr<Gpu> open_gpu_under_test(const GpuOptions& options = {},
                                         const AttentionOptions& attention = {});

}  // namespace ftrun::testing
