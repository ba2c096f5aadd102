#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/module_names.h"
#include "model/model_config.h"

namespace ftrun {

/// Returns the list that a text of several names probably means: "[q_proj, v_proj]" for
/// "q_proj,v_proj"; "" for any other text.
std::string suggest_name_list(const std::string& text);

/// Returns the name in memory, which PEFT uses, of a module of the decoder.
std::string path_in_memory(const ModelConfig& config, std::string_view module);

/// Lists the decoder's modules that are not linear layers of a block (head, embeddings, norms), by
/// their names in memory.
std::vector<std::string> modules_beside_projections(const ModelConfig& config);
/// Lists all modules of the decoder that do not hold others, by their names in memory.
std::vector<std::string> decoder_modules(const ModelConfig& config);
/// Lists the modules that contain the modules of these paths: "model", "model.layers",
/// "model.layers.0", ...
std::vector<std::string> parent_modules(const std::vector<std::string>& paths);

}  // namespace ftrun
