#pragma once

#include <optional>

#include "config/config.h"
#include "data/sample_set.h"
#include "exec/setup.h"
#include "exec/stop_agreement.h"

namespace ftrun {

/// Collective: the mean loss over the counted tokens of the validation rows that the config asks
/// for; nothing when the ranks agreed to stop before all of them were read: they vote with each
/// round's loss. Error(kBadInput) when no token counts.
std::optional<double> validation_loss(const Config& config, TrainingSetup& setup,
                                      const SampleSet& data, StopAgreement& stop);

}  // namespace ftrun
