#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "config/config.h"
#include "engine/device_times.h"
#include "engine/step_run.h"
#include "optimizers/optimizer_config.h"
#include "program/instr_kind.h"
#include "report/step_metrics.h"

namespace ftrun {

/// Describes a step in one line for a rank's own log. It has mainly times, which differ between
/// ranks.
std::string plain_step_text(const StepMetrics& metrics);

/// Returns what DeepSpeed prints every steps_per_print steps: "step=10, skipped=0, lr=[0.001],
/// mom=[[0.9, 0.999]]".
std::string deepspeed_step_text(int64_t step, int64_t skipped, const StepRun& run,
                                const OptimizerConfig& optimizer);

/// Returns what the key wall_clock_breakdown prints: milliseconds of the step by kind of
/// instruction.
std::string breakdown_text(const std::array<double, kInstrKinds>& seconds);

/// Describes how much copies overlapped computation: "copies between device and host: 12.50 ms, 91
/// % of it during computation".
std::string overlap_text(const DeviceTimes& times);

}  // namespace ftrun
