#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace ftrun {

/// The entry of target_modules that chooses all products of blocks.
inline constexpr std::string_view kAllLinear = "all-linear";

/// Returns whether a module's path is the entry, or ends with "." and the entry.
inline bool ends_at_dot(const std::string& path, const std::string& entry) {
  return path == entry || path.ends_with("." + entry);
}

/// Writes a single text that is made of names as the list that was meant: "[q_proj, v_proj]" of
/// "q_proj,v_proj"; "" for any other text.
std::string list_of_names(const std::string& text);

/// Returns the name in memory, which PEFT uses, of a module of the decoder.
std::string path_in_memory(const ModelConfig& config, std::string_view module);

/// Lists the decoder's modules that are no products of a block (head, embeddings, norms), by their
/// names in memory.
std::vector<std::string> modules_beside_products(const ModelConfig& config);
/// Lists all modules of the decoder that do not hold others, by their names in memory.
std::vector<std::string> decoder_modules(const ModelConfig& config);
/// Lists the modules that hold those of the paths: "model", "model.layers", "model.layers.0", ...
std::vector<std::string> holding_modules(const std::vector<std::string>& paths);

}  // namespace ftrun
