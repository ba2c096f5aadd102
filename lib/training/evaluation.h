#pragma once

#include <optional>
#include <vector>

#include "config/config.h"
#include "engine/setup.h"
#include "inputs/run_data.h"
#include "report/step_metrics.h"
#include "training/stop_agreement.h"

namespace ftrun {

/// Computes loss and accuracy over the counted tokens of each set, in as many sequences as the
/// config says. Returns nothing if the ranks agreed to stop before all sequences were read; the
/// flags are part of the exchange of each pass's loss. A set without counted tokens has no value;
/// if export.which is "best" and depends on that set, throws Error(kBadInput). Collective; every
/// rank gets the same results.
std::optional<std::vector<EvaluationResult>> evaluate_sets(const Config& config,
                                                           TrainingSetup& setup,
                                                           const std::vector<ValidationSet>& sets,
                                                           StopAgreement& stop);

}  // namespace ftrun
