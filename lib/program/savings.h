#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/config.h"
#include "program/memory_plan.h"

namespace ftrun {

/// Saving is a change of the config with which a rank needs less memory.
struct Saving {
  /// "zero_optimization.stage: 3", as it would be written; other changes that it entails in
  /// brackets.
  std::string change;
  /// The bytes saved, by the measure that was asked about.
  int64_t bytes = 0;
};

/// A MemoryMeasure is the figure of a plan that a saving reduces.
using MemoryMeasure = std::function<int64_t(const MemoryPlan&)>;

/// Returns the measure that limits a run: main memory where processors compute, whose tiers device
/// and host are the same; device memory where GPUs do.
MemoryMeasure limiting_memory(const Config& config);

/// Lists changes that save memory, the largest first, each by itself and one for each key: the
/// steps of `rank` are planned again with each. Changes that this build would refuse
/// (config/resolve's objections) are left out. `config` is resolved.
std::vector<Saving> memory_savings(const Config& config, const ModelConfig& model, int rank,
                                   const MemoryMeasure& measure);

/// Writes the first `count` savings that help as a remedy: "what saves most memory on each rank:
/// recompute.policy: full saves 1.20 GiB; ...". A rank lacks `lacking` bytes: only changes that
/// save as much by themselves are listed or, where there are none, those that save a tenth of it.
/// 0: the lack is not known, and all changes help.
std::string savings_remedy(const std::vector<Saving>& savings, int64_t lacking = 0,
                           size_t count = 3);

}  // namespace ftrun
