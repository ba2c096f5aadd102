#pragma once

#include <optional>

#include "config/config_node.h"

namespace ftrun {

/// Recognizes files that other programs' launchers read (gpt-neox, axolotl, LLaMA-Factory,
/// torchtune, TrainingArguments) and returns a problem that says what the file is and what to pass
/// instead.
std::optional<Problem> find_foreign_config_problem(const ConfigNode& root);

}  // namespace ftrun
