#pragma once

#include <string>

#include "config/config.h"
#include "engine/gpu.h"
#include "model/config.h"

namespace ftrun {

/// ComparedKernels is the result of compare_kernels().
struct ComparedKernels {
  int operations = 0;
  /// ||GPU's - processor's|| / ||processor's|| of the output that differs most, and its name.
  double largest_difference = 0;
  std::string operation = "";
  double seconds = 0;
};

/// Runs each operation and the optimizer's update of this rank's program on the GPU and on the
/// processor, on random numbers, for a model with the same heads, layers and adapters but small
/// matrices. RankError(kEnvironment) of this device where they differ by more than rounding
/// explains.
ComparedKernels compare_kernels(const Config& config, const ModelConfig& model, int rank, Gpu& gpu);

}  // namespace ftrun
