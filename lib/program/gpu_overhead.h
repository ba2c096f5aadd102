#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "program/step_plan.h"

namespace ftrun {

/// GpuOverhead is memory of a GPU that its rank's plan does not allocate.
struct GpuOverhead {
  /// The purpose and size as text: "NCCL's buffers, 512.00 MiB for each of its 2 groups".
  std::string description;
  /// The upper bound, from the library's documentation. It is not measured, because libraries
  /// report only memory that they have allocated already.
  int64_t bytes = 0;
};

/// Lists the overheads of a rank's GPU; empty for ranks that compute on CPUs.
std::vector<GpuOverhead> list_gpu_overheads(const Config& config, const StepPlan& plan);
int64_t total_bytes(const std::vector<GpuOverhead>& overheads);
/// Formats all overheads in one line; "" where there are none.
std::string gpu_overhead_text(const std::vector<GpuOverhead>& overheads);

}  // namespace ftrun
