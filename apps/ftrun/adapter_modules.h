#pragma once

#include <optional>

#include "config/config.h"
#include "config/problem.h"
#include "model/model_config.h"

namespace ftrun {

/// Notes that the written target_modules also names modules of a multimodal model's other parts,
/// which PEFT would train and ftrun does not. The modules are those of the folder's tensors, so
/// that nothing is noted of a folder whose weights cannot be read.
std::optional<Problem> other_parts_notice(const Config& config, const ModelConfig& model);

}  // namespace ftrun
