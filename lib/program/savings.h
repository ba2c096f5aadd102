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

/// What of a plan is to become less.
using MemoryMeasure = std::function<int64_t(const MemoryPlan&)>;

/// Main memory where processors compute: their tiers device and host are the same. The device's where
/// devices do.
MemoryMeasure limiting_memory(const Config& config);

/// Changes that save something, the largest first, each by itself and one of each key: the steps of
/// `rank` are planned again with each. What this build would refuse (config/resolve's objections) is
/// left out. `config` is resolved.
std::vector<Saving> memory_savings(const Config& config, const ModelConfig& model, int rank,
                                   const MemoryMeasure& measure);

/// The first `count` of them as a remedy: "save most: recompute.policy: full (1.20 GiB), ...".
std::string savings_remedy(const std::vector<Saving>& savings, size_t count = 3);

}  // namespace ftrun
