#pragma once

#include <string>

#include "config/config.h"
#include "engine/gpu.h"
#include "model/model_config.h"

namespace ftrun {

/// KernelComparison is the result of compare_kernels().
struct KernelComparison {
  int operations = 0;
  /// The largest relative difference of an output, ||GPU - CPU|| / ||CPU||.
  double largest_difference = 0;
  /// The operation whose output has this difference, and the graph that it belongs to.
  std::string worst_operation = "";
  double seconds = 0;
};

/// Runs each operation and the optimizer's update of this rank's program on the GPU and on the
/// CPU, on random numbers, for a model with the same heads, layers and adapters but small
/// matrices. Throws RankError(kEnvironment) of this device where results differ by more than
/// rounding can explain.
KernelComparison compare_kernels(const Config& config, const ModelConfig& model, int rank,
                                 Gpu& gpu);

}  // namespace ftrun
