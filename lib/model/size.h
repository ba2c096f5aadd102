#pragma once

#include <cstdint>

#include "model/description.h"

namespace ftrun {

/// ParameterCounts counts the parameters of a model; a tied matrix counts once.
struct ParameterCounts {
  int64_t total = 0;
  /// The number of parameters of the input embedding.
  int64_t embedding = 0;
  int64_t non_embedding = 0;
  /// The number of parameters that a token is multiplied with: all except an embedding table that
  /// is only looked up.
  int64_t multiplied = 0;
  bool operator==(const ParameterCounts&) const = default;
};

ParameterCounts count_parameters(const ModelDescription& model);

/// TrainingFlops holds the floating-point operations of training one token (forward and backward),
/// by the two formulas in use; P = multiplied parameters, L layers, h = query heads * head size, T
/// tokens of a sequence.
struct TrainingFlops {
  /// The formula 6P + 12LhT (Chowdhery et al. 2022, PaLM, appendix B), which does not halve the
  /// attention scores.
  double full = 0;
  /// The formula 6P + 6LhT, which counts only the causal half of the scores.
  double causal = 0;
};

/// Computes both formulas, without regard to sliding windows: they are conventions, not
/// measurements.
TrainingFlops training_flops_per_token(const ModelDescription& model);

}  // namespace ftrun
