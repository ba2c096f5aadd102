#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/model_config.h"

namespace ftrun {

/// ModelPreset is the shape of a well-known model, for plans without a model folder.
struct ModelPreset {
  /// The name for `ftrun plan --model`: "llama-3.1-8b".
  std::string_view name;
  /// The model_type of Hugging Face.
  std::string_view family;
  int64_t layers, hidden, query_heads, kv_heads, head_size, feed_forward, vocab, positions;
  /// Says whether the output matrix is the embedding matrix.
  bool tied;
  /// The source of the numbers.
  std::string_view source;
};

/// Lists all presets, families together.
std::span<const ModelPreset> model_presets();

/// Finds a preset by its name. Throws Error(kUsage), which lists all presets, for an unknown name.
const ModelPreset& find_preset(std::string_view name);

/// Returns the config of a preset, as far as memory and time depend on it; errors name it `name`.
ModelConfig preset_config(const ModelPreset& preset, const std::string& name);

/// Reads a number of parameters: "7B", "1.3b", "350M". Throws Error(kUsage) for any other text, for
/// fewer than 50 million and for more than 10,000 billion.
int64_t parse_parameter_count(std::string_view text);

/// Makes a model of the shape of Llama 2 with about this many parameters: the head has its own
/// matrix of a vocabulary of 32,000; heads have 128 elements (64 below 1.5 billion parameters), and
/// their number is a multiple of 8; the hidden size is about 128 times the number of layers, which
/// is a multiple of 4. The MLP's width, a multiple of 64, accounts for the remaining parameters. Of
/// the possible hidden sizes, chooses the one for which the MLP's width is nearest to 8/3 of it.
ModelPreset preset_of_size(int64_t parameters);

}  // namespace ftrun
