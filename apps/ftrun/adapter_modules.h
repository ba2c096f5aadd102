#pragma once

#include <vector>

#include "config/config.h"
#include "config/problem.h"
#include "model/model_config.h"

namespace ftrun {

/// Compares target_modules and exclude_modules with the modules of the whole model, as PEFT would:
/// refuses entries of exclude_modules that name no module. With `with_notices` it also notes
/// entries of exclude_modules that change nothing, and that target_modules names modules of a
/// multimodal model's other parts, which PEFT would train and ftrun does not. The other parts'
/// modules are those of the folder's tensors, whose names are read where they are needed; nothing
/// is said of them if the folder cannot be read.
std::vector<Problem> check_adapter_modules(const Config& config, const ModelConfig& model,
                                           bool with_notices);

}  // namespace ftrun
