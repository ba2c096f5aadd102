#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace ftrun {

/// Returns the rotary_size/2 inverse frequencies: angles in radians per token. Each is an fp32
/// number, computed with the roundings of transformers (modeling_rope_utils), so that angles agree
/// with it at any position. `longest_sequence` is the number of tokens of the longest sequence that
/// the run can have.
std::vector<double> inverse_frequencies(const RopeConfig& rope, int64_t rotary_size,
                                        int64_t longest_sequence);

/// Returns whether longrope divides by its long factors in a run whose longest sequence has this
/// many tokens. transformers decides this for each batch; here it is decided once for a run, so
/// that no step depends on which sequences share a batch.
bool uses_long_factors(const RopeConfig& rope, int64_t longest_sequence);

/// Computes the factor of cos and sin if yarn's settings do not give it (Peng et al. 2023, section
/// 3.4): 0.1 m ln(factor) + 1, with m = 1, or the quotient of that for mscale and for
/// mscale_all_dim where neither is 0 (DeepSeek).
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim);

/// Computes the factor of cos and sin if longrope's settings do not give it (Ding et al. 2024):
/// sqrt(1 + ln(factor) / ln(original_positions)), 1 for factors of at most 1. original_positions is
/// above 1.
double longrope_attention_factor(double factor, int64_t original_positions);

/// Returns the number of tokens of the longest sequence for which the model's positions were made;
/// 0: config.json does not say.
int64_t max_supported_positions(const ModelConfig& config);

/// Returns the scaling of the rotation that would allow sequences of this many tokens, which are
/// more than max_supported_positions(); "" for a model that does not rotate.
std::string suggest_rope_scaling(const ModelConfig& config, int64_t tokens);

}  // namespace ftrun
