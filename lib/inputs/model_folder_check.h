#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/problem.h"
#include "config/written_config.h"
#include "model/model_config.h"

namespace ftrun {

/// CheckedModelFolder is the folder of the model that a config names, and notices about it.
struct CheckedModelFolder {
  std::string folder;
  std::vector<Problem> notices;
};

/// Finds the folder of the model that a config names. Throws Error(kBadInput) for a path that is
/// not the folder of a model: a missing path, a file, an adapter, or a folder without config.json.
CheckedModelFolder find_model_folder_of(const WrittenConfig& config);

/// Checks the model's weights as training does when it opens the model. Returns a problem if they
/// cannot be used; nothing if they can.
std::optional<Problem> find_weights_problem(const Config& config, const ModelConfig& model);

}  // namespace ftrun
