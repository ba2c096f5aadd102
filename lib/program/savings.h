#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/config.h"
#include "program/memory_plan.h"

namespace ftrun {

/// A change of the config that a rank would need less memory with.
struct Saving {
  /// "zero_optimization.stage: 3", as it would be written; what else changes with it in brackets.
  std::string change;
  /// Less than now, of what was asked about.
  int64_t bytes = 0;
};

/// A MemoryMeasure is the figure of a plan that is to become less.
using MemoryMeasure = std::function<int64_t(const MemoryPlan&)>;

/// Main memory where processors compute: their tiers device and host are the same. The
/// device's where devices do.
MemoryMeasure limiting_memory(const Config& config);

/// Changes that save something, the largest first, each by itself and one of each key: the steps of
/// `rank` are planned again with each. What this build would refuse (config/resolve's objections)
/// is left out. `config` is resolved.
std::vector<Saving> memory_savings(const Config& config, const ModelConfig& model, int rank,
                                   const MemoryMeasure& measure);

/// The first `count` savings that help as a remedy: "what saves most memory on each rank:
/// recompute.policy: full saves 1.20 GiB; ...". A rank lacks `lacking` bytes: changes that save as
/// much by themselves are told alone; where there are none, those that save a tenth of it. 0: how
/// much it lacks is not known, and all help.
std::string savings_remedy(const std::vector<Saving>& savings, int64_t lacking = 0,
                           size_t count = 3);

}  // namespace ftrun
