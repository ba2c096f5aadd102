#pragma once

#include <optional>
#include <vector>

#include "config/config.h"
#include "config/problem.h"
#include "model/model_config.h"

namespace ftrun {

/// Returns a problem if the model cannot be split among tensor-parallel ranks or cut into pipeline
/// stages as the config requests; nothing if it can. If the config has errors
/// (`config_has_errors`), the pipeline is not checked.
std::optional<Problem> find_division_problem(const Config& config, const ModelConfig& model,
                                             bool config_has_errors);

/// Checks whether the model can be trained as the config requests: adapters, quantization, frozen
/// tensors, and the adapter from which training continues. Returns errors, and a notice if that
/// adapter was trained on a base that was quantized in another way: an adapter fits only the base
/// weights that it was trained on.
std::vector<Problem> check_trainable(const Config& config, const ModelConfig& model);

}  // namespace ftrun
