#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"

namespace ftrun {

/// ModelPreset is the shape of a well-known model, for plans without a model folder.
struct ModelPreset {
  /// The name of `ftrun plan --model`: "llama-3.1-8b".
  std::string_view name;
  /// Hugging Face's model_type.
  std::string_view family;
  int64_t layers, hidden, query_heads, kv_heads, head_size, feed_forward, vocab, positions;
  /// The output matrix is the embedding matrix.
  bool tied;
  /// The page where the numbers are from.
  std::string_view source;
};

/// Lists all presets, families together.
std::span<const ModelPreset> model_presets();

/// Finds a preset by its name. Refuses an unknown name with Error(kUsage), which lists all presets.
const ModelPreset& find_preset(std::string_view name);

/// Returns the config of a preset, as far as memory and time depend on it; errors name it `name`.
ModelConfig preset_config(const ModelPreset& preset, const std::string& name);

/// Reads a number of parameters: "7B", "1.3b", "350M". Refuses anything else, fewer than 50 million
/// and more than 10,000 billion with Error(kUsage).
int64_t parse_parameter_count(std::string_view text);

/// Makes a model of the shape of Llama 2 with about this many parameters: a vocabulary of 32,000
/// rows of its own for the head, heads of 128 (of 64 below 1.5 billion parameters) whose number is
/// a multiple of 8, as wide as 128 times its layers, whose number is a multiple of 4. The width is
/// the one at which the MLP's is nearest to 8/3 of it; the MLP's, a multiple of 64, takes up the
/// rest.
ModelPreset preset_of_size(int64_t parameters);

}  // namespace ftrun
