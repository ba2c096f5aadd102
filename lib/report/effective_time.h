#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/run_manifest.h"
#include "report/step_metrics.h"

namespace ftrun {

/// EffectiveTime describes how much of a run's time was spent on steps that count. A step counts if
/// metrics.jsonl still holds it: a restart removes the steps that are trained again. The rest of
/// the time is start-up, saving, validation, lost steps and the time until a restart. The counters
/// in the manifest keep the values over restarts and resumes.
struct EffectiveTime {
  double steps_seconds = 0;
  /// Seconds from the first start of the run.
  double total_seconds = 0;
  double ratio() const { return total_seconds > 0 ? steps_seconds / total_seconds : 0; }
};

/// Records `unix_seconds` as the first start of the run, unless a first start is recorded already.
void record_first_start(RunManifest& manifest, double unix_seconds);

/// Computes the effective time until `unix_seconds`, writes it to the manifest, and returns it.
EffectiveTime record_effective_time(RunManifest& manifest, const std::vector<StepMetrics>& metrics,
                                    double unix_seconds);

/// Returns the text "effective training time: 83.1 % of 12.3s since the first start (10.2s in steps
/// that counted)".
std::string effective_time_text(const EffectiveTime& time);

/// Describes the last `count` restarts, a line each: when, why, from which step to which, and with
/// how many ranks if some were removed.
std::vector<std::string> restart_texts(const RunManifest& manifest, int64_t count);

}  // namespace ftrun
