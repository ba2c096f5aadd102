#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/adapter_choices.h"
#include "model/model_config.h"
#include "model/tensor_names.h"

namespace ftrun {

/// LowRankAdapter is the low-rank adapter of one linear layer (Hu et al. 2021): y += scale B
/// (A dropout(x)) with A [rank, inputs] and B [outputs, rank].
struct LowRankAdapter {
  /// The rank of the adapter; 0: the linear layer has none.
  int64_t rank = 0;
  double scale = 0;
  auto operator<=>(const LowRankAdapter&) const = default;
};

/// BlockAdapter holds the adapters of a block's linear layers.
struct BlockAdapter {
  /// The adapter of each linear layer; those of one module (TensorNames::linear_layers) have the
  /// same adapter.
  std::array<LowRankAdapter, kProjections> by_projection;
  /// Says whether the block's linear layers have magnitudes (Liu et al. 2024, "DoRA"): row o of W +
  /// scale B A is divided by its norm and multiplied by the magnitude m[o], which trains and begins
  /// as that norm.
  bool magnitudes = false;

  const LowRankAdapter& at(Projection projection) const {
    return by_projection[static_cast<size_t>(projection)];
  }
  auto operator<=>(const BlockAdapter&) const = default;
};

/// Adapter holds the adapters of a model's blocks; without entries the model has none.
struct Adapter {
  std::vector<BlockAdapter> blocks;
  LoraInit init = LoraInit::kUniform;
  /// The dropout in training of the elements that A multiplies.
  double dropout = 0;

  /// Returns the adapter of a block, an empty one where the model has no adapters.
  const BlockAdapter& block(int64_t layer) const {
    static const BlockAdapter kNone;
    return blocks.empty() ? kNone : blocks[static_cast<size_t>(layer)];
  }
  bool operator==(const Adapter&) const = default;
};

/// LoraOptions specifies which modules get which adapter. Names and meanings are those of PEFT's
/// LoraConfig.
struct LoraOptions {
  int64_t r = 8;
  double alpha = 8;
  /// Says whether the scale is alpha / sqrt(r) instead of alpha / r.
  bool rank_stabilized = false;
  /// The modules with adapters: those whose path is an entry or ends with "." and an entry or, if
  /// `target_pattern` is given instead, whose whole path matches that regular expression.
  /// "all-linear" as the only entry selects all linear layers of blocks. Without entries and
  /// pattern the family's own modules are selected (TensorNames::default_targets).
  std::vector<std::string> target_modules;
  std::string target_pattern;
  std::vector<std::string> exclude_modules;
  std::string exclude_pattern;
  /// The modules that train whole: these, and those whose paths end with their names, get no
  /// adapter.
  std::vector<std::string> saved_modules;
  /// The blocks that have adapters; empty: all.
  std::vector<int64_t> layers;
  /// Regular expressions of the end of a module's path, each with a rank or alpha for these
  /// modules: the first match counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  LoraInit init = LoraInit::kUniform;
  /// The dropout probability, from 0 to below 1.
  double dropout = 0;
  /// Says whether the adapters have magnitudes (BlockAdapter::magnitudes).
  bool magnitudes = false;
  bool operator==(const LoraOptions&) const = default;
};

/// Makes the adapter that the options describe. Throws one Error(kUsage) that lists all problems of
/// the options: entries and expressions that match no module (with the nearest names), modules that
/// have no low-rank adapters here, broken expressions, blocks that do not exist.
Adapter make_adapter(const ModelConfig& config, const LoraOptions& options);

/// Return the names of a module's adapter tensors: "model.layers.0.self_attn.q_proj.lora_A.weight",
/// its B, and "....q_proj.lora_magnitude_vector", the magnitudes of the outputs.
std::string lora_a_name(const std::string& module);
std::string lora_b_name(const std::string& module);
std::string lora_magnitude_name(const std::string& module);
/// Returns whether a tensor of that name belongs to a low-rank adapter.
bool is_lora_name(std::string_view tensor);
/// Returns the module of such a tensor: "model.layers.0.self_attn.q_proj".
std::string lora_module(const std::string& tensor);

}  // namespace ftrun
