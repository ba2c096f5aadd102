#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "program/step_plan.h"

namespace ftrun {

/// Memory that a GPU holds beside what the plan of its rank allocates.
struct GpuOverhead {
  /// "NCCL's buffers, 512.00 MiB a group"
  std::string what;
  /// The upper bound. Libraries say of themselves only what they took: these are bounds by their
  /// documentation, not measurements.
  int64_t bytes = 0;
};

/// Empty for ranks that compute on processors.
std::vector<GpuOverhead> gpu_overheads(const Config& config, const StepPlan& plan);
int64_t total_bytes(const std::vector<GpuOverhead>& overheads);
/// Names each in one line; "" for none.
std::string gpu_overhead_text(const std::vector<GpuOverhead>& overheads);

}  // namespace ftrun
