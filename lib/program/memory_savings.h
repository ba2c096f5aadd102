#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/model_config.h"
#include "program/memory_plan.h"

namespace ftrun {

/// MemorySaving is a change of the config that reduces the memory a rank needs.
struct MemorySaving {
  /// The change as written in a config, "zero_optimization.stage: 3", followed in parentheses by
  /// further changes that it requires.
  std::string change;
  /// The number of bytes saved, by the caller's MemoryMeasure.
  int64_t bytes = 0;
};

/// A MemoryMeasure computes the number of bytes of a plan that a saving should reduce.
using MemoryMeasure = std::function<int64_t(const MemoryPlan&)>;

/// Returns the measure of the memory that holds a tier. If the device tier and the host tier are
/// both main memory (`shares_memory`, without a GPU), the measure of either counts both.
MemoryMeasure memory_measure_of(Tier tier, bool shares_memory);
/// Returns the measure of the memory that holds a tier on the device of this config.
MemoryMeasure memory_measure_of(Tier tier, const Config& config);

/// Lists changes that save memory, the largest saving first, one for each key. Each change is
/// measured alone, by planning the steps of `rank` again. Changes that this build would refuse
/// (config/resolve's objections) are left out. `config` is resolved.
std::vector<MemorySaving> list_memory_savings(const Config& config, const ModelConfig& model,
                                              int rank, const MemoryMeasure& measure);

/// Formats the first `count` savings that help as a remedy: "make one or more of these changes
/// (savings per rank): recompute.policy: full saves 1.20 GiB; ...". The rank lacks `lacking_bytes`
/// bytes: the remedy lists changes that save as much alone or, where there are none, those that
/// save at least a tenth of it. With 0 the lack is not known, and all changes are listed.
std::string savings_remedy(const std::vector<MemorySaving>& savings, int64_t lacking_bytes = 0,
                           size_t count = 3);

}  // namespace ftrun
