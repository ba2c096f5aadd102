#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/adapter_choices.h"
#include "model/config.h"
#include "model/tensor_names.h"

namespace ftrun {

/// LowRank is the low-rank adapter of one product (Hu et al. 2021): y += scale B (A dropout(x))
/// with A [rank, inputs] and B [outputs, rank].
struct LowRank {
  /// 0: the product has none.
  int64_t rank = 0;
  double scale = 0;
  auto operator<=>(const LowRank&) const = default;
};

/// BlockAdapter holds the adapters of a block's products.
struct BlockAdapter {
  /// The adapter by product; products of one module (TensorNames::products) have the same.
  std::array<LowRank, kProjections> of;
  /// Magnitudes of the block's products (Liu et al. 2024, "DoRA"): row o of W + scale B A is
  /// divided by its length and multiplied by m[o], which is trained and starts as that length.
  bool magnitudes = false;

  const LowRank& at(Projection projection) const { return of[static_cast<size_t>(projection)]; }
  auto operator<=>(const BlockAdapter&) const = default;
};

/// Adapter holds the adapters of a model's blocks; without entries the model has none.
struct Adapter {
  std::vector<BlockAdapter> blocks;
  LoraInit begin = LoraInit::kUniform;
  /// The dropout in training of the elements that A multiplies.
  double dropout = 0;

  /// Returns the adapter of a block, an empty one where the model has no adapters.
  const BlockAdapter& block(int64_t layer) const {
    static const BlockAdapter kNone;
    return blocks.empty() ? kNone : blocks[static_cast<size_t>(layer)];
  }
  bool operator==(const Adapter&) const = default;
};

/// LoraOptions says which modules get which adapter, in PEFT's words and with its meanings
/// (LoraConfig).
struct LoraOptions {
  int64_t r = 8;
  double alpha = 8;
  /// scale = alpha / sqrt(r) instead of alpha / r.
  bool rank_stabilized = false;
  /// A module is chosen when its path is an entry or ends with "." and an entry, or, with
  /// `target_pattern` instead, when its whole path matches the regular expression. "all-linear" as
  /// the only entry chooses all products of blocks. Without either the family's own modules are
  /// chosen (TensorNames::adapted).
  std::vector<std::string> target_modules;
  std::string target_pattern;
  std::vector<std::string> exclude_modules;
  std::string exclude_pattern;
  /// Modules that train whole: these, and those whose paths end with their names, get no adapter.
  std::vector<std::string> saved_modules;
  /// The only blocks with adapters; empty: all.
  std::vector<int64_t> layers;
  /// Regular expressions of the end of a module's path, and its own rank or alpha: the first
  /// one that matches counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  LoraInit begin = LoraInit::kUniform;
  /// The dropout, from 0 to below 1.
  double dropout = 0;
  /// BlockAdapter::magnitudes.
  bool magnitudes = false;
  bool operator==(const LoraOptions&) const = default;
};

/// Makes the adapter that the options ask for. Refuses options with one Error(kUsage) that lists
/// all problems: entries and expressions that match no module (with the nearest names), modules
/// that have no low-rank adapters here, broken expressions, blocks that do not exist.
Adapter make_adapter(const ModelConfig& config, const LoraOptions& options);

/// Return the names of a module's adapter tensors: "model.layers.0.self_attn.q_proj.lora_A.weight",
/// its B, and "....q_proj.lora_magnitude_vector", of outputs.
std::string lora_a_name(const std::string& module);
std::string lora_b_name(const std::string& module);
std::string lora_magnitude_name(const std::string& module);
/// Says whether a tensor of that name belongs to a low-rank adapter.
bool is_lora_name(std::string_view tensor);
/// Returns the module of such a tensor: "model.layers.0.self_attn.q_proj".
std::string lora_module(const std::string& tensor);

}  // namespace ftrun
