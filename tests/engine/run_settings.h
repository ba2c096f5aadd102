#pragma once

#include <span>

#include "config/config.h"

namespace ftrun::testing {

/// Precision lists the precisions of a run: of its matrix multiplications, or (kNarrow...) of the
/// optimizer state that it keeps in bf16.
enum Precision { kFp32, kFp16, kBf16, kNarrowMoments, kNarrowMasters, kPrecisions };
void set_precision(Config& config, Precision precision);

/// Adapter lists the kinds of adapters, which are on all linear layers.
enum Adapter { kNoAdapter, kLora, kLoraDropout, kDora, kLoraOnNf4, kAdapters };
void set_adapter(Config& config, Adapter adapter);
/// The length of each rank's part of a row must be a multiple of this with NF4.
inline constexpr int64_t kNf4Block = 64;

/// Lists every optimizer that has its own update rule.
std::span<const OptimizerType> updating_optimizers();
void set_optimizer(Config& config, OptimizerType type);

const char* name_of(Precision precision);
const char* name_of(Adapter adapter);

}  // namespace ftrun::testing
