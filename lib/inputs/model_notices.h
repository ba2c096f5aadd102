#pragma once

#include <optional>
#include <vector>

#include "config/config.h"
#include "config/problem.h"
#include "model/model_config.h"

namespace ftrun {

/// Lists the notices about what a config without errors asks of its model: more positions than the
/// model was trained on, the factors of longrope, the padding of sequences, the pipeline bubble,
/// and limits of programs that serve the trained adapter. Notices that need the model are omitted
/// if it is not known.
std::vector<Problem> model_notices(const Config& config, const std::optional<ModelConfig>& model);

}  // namespace ftrun
