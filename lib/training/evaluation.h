#pragma once

#include <optional>
#include <vector>

#include "config/config.h"
#include "engine/setup.h"
#include "inputs/run_data.h"
#include "report/step_metrics.h"
#include "training/stop_agreement.h"

namespace ftrun {

/// Computes loss and accuracy over the counted tokens of the rows of each set that the config
/// names. Returns nothing if the ranks agreed to stop before all rows were read; they vote with
/// each round's loss. A set without counted tokens has no value; throws Error(kBadInput) where
/// export.which: best depends on it. Collective; every rank gets the same results.
std::optional<std::vector<EvaluationResult>> evaluate_sets(const Config& config,
                                                           TrainingSetup& setup,
                                                           const std::vector<NamedSamples>& sets,
                                                           StopAgreement& stop);

}  // namespace ftrun
