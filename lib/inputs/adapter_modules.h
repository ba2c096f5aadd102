#pragma once

#include <vector>

#include "config/config.h"
#include "config/problem.h"
#include "model/model_config.h"

namespace ftrun {

/// Compares target_modules and exclude_modules with the modules of the whole model, as PEFT would.
/// Entries of exclude_modules that name no module are errors. If `with_notices`, there are also
/// notices: about entries of exclude_modules that change nothing, and about target_modules that
/// name modules in other parts of a multimodal model, which PEFT would train and ftrun does not.
/// The modules of the other parts are found by the names of the tensors in the model's folder,
/// which is read only if necessary. If it cannot be read, nothing is reported about them.
std::vector<Problem> check_adapter_modules(const Config& config, const ModelConfig& model,
                                           bool with_notices);

}  // namespace ftrun
