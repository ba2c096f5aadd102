#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "ops/activation/activations.h"

namespace ftrun {

/// RopeType says how the rotary angles of a model are scaled (transformers' rope_type).
enum class RopeType : uint8_t { kDefault, kLinear, kLlama3, kYarn, kLongRope };

/// NormKind is the norm in blocks and before the head: RMS norm (Zhang and Sennrich 2019), the same
/// with weights that are stored less 1, or layer norm with a weight (Ba et al. 2016).
enum class NormKind : uint8_t { kRms, kRmsLessOne, kLayer };

/// QkNorm is the norm of queries and keys before the rotation.
enum class QkNorm : uint8_t {
  kNone,
  /// RMS norm of each query and key head; all query heads share weights, and so do all key heads.
  kEachHead,
  /// RMS norm of all query heads and of all key heads of a token together.
  kAllHeads,
  /// Layer norm of each query and key head without a bias; each head has weights of its own.
  kOwnWeights,
};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  /// The share of a head's elements that rotate.
  double partial = 1.0;
  /// All types but kDefault: the longest context is this many times the original one.
  double factor = 1.0;
  /// kLlama3: wave lengths above original_positions / low_frequency_factor tokens are stretched by
  /// `factor`, those below original_positions / high_frequency_factor are left, others blended.
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  /// kLlama3, kYarn, kLongRope: the longest context before the scaling.
  int64_t original_positions = 0;
  /// kYarn: pairs that turn at least beta_fast times in the original context keep their
  /// frequencies, those that turn at most beta_slow times are stretched by `factor`, others
  /// blended; `truncate` moves both borders to whole pairs.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;
  /// kLongRope: what each pair's frequency is divided by in runs whose rows fit into the original
  /// context, and in others (model/rope_angles.h).
  std::vector<double> short_factors;
  std::vector<double> long_factors;
  /// Multiplies cos and sin.
  double attention_factor = 1.0;
  bool operator==(const RopeConfig&) const = default;
};

/// ModelConfig is what a Hugging Face config.json says of a decoder, in one spelling.
struct ModelConfig {
  /// Hugging Face's model_type: "llama", "mistral", "gpt2", ...
  std::string family;
  /// The model_type of the multimodal class that the decoder is a part of (model/multimodal.h);
  /// else empty.
  std::string multimodal;
  int64_t vocab_rows = 0;
  int64_t hidden = 0;
  int64_t feed_forward = 0;
  int64_t layers = 0;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  /// Longest sequence the model was made for; 0 when config.json does not say.
  int64_t max_positions = 0;
  NormKind norm = NormKind::kRms;
  /// Layer norms have a bias.
  bool norm_bias = true;
  double norm_epsilon = 1e-6;
  Activation activation = Activation::kSilu;
  /// The MLP is down(act(gate(x)) * up(x)); else down(act(up(x))).
  bool gated = true;
  /// Says whether each position has a vector that is added to the token's; heads do not rotate
  /// then.
  bool learned_positions = false;
  /// Vectors of the position table that stand before the first position's.
  int64_t position_offset = 0;
  /// The output matrix is the embedding matrix.
  bool tied = false;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  /// The output matrix has a bias, which is not the embedding's.
  bool head_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  /// Attention reads the norm of the hidden states; else the hidden states.
  bool input_norm = true;
  /// The MLP reads a norm of its own of the hidden states; else the hidden states, or, with a
  /// parallel residual, what attention reads.
  bool mlp_norm = true;
  /// Norms of what attention and MLP add to the hidden states.
  bool output_norms = false;
  /// Attention and MLP read the same hidden states, to which both are added: x + attention(x) +
  /// mlp(x). Else the MLP reads what attention was added to.
  bool parallel_residual = false;
  /// Factors of the embedding's rows, of what attention and MLP add to the hidden states, of
  /// logits.
  double embedding_scale = 1.0;
  double residual_scale = 1.0;
  double logit_scale = 1.0;
  /// embedding_scale is rounded to the dtype of activations, as the class does.
  bool rounds_embedding_scale = false;
  /// The factor of attention's scores; none: 1 / sqrt(head_size).
  std::optional<double> attention_scale;
  /// Bounds of the sizes of attention's scores and of logits; 0: none.
  double attention_softcap = 0;
  double logit_softcap = 0;
  /// Keys of config.json that ask for dropout in training.
  std::vector<std::string> dropouts;
  RopeConfig rope;
  /// The longest rows that are computed as in other families; longer ones are refused. 0: no limit.
  int64_t plain_positions = 0;
  /// Neighbouring elements of a head (2i, 2i+1) rotate together; else those at the same place of
  /// its two halves.
  bool rotates_pairs = false;
  /// Says of each layer whether it rotates; empty: all do.
  std::vector<bool> rotates;
  /// The rotation of layers with a sliding window, where it differs.
  std::optional<RopeConfig> window_rope;
  /// Sliding window of each layer in tokens; 0 = full attention.
  std::vector<int64_t> windows;
  /// The dtype the weights were saved in, when config.json names one that ftrun knows.
  std::optional<DType> dtype;
  std::vector<int64_t> eos_ids;
  std::optional<int64_t> bos_id;
  std::optional<int64_t> pad_id;
  /// The row of the embedding to which transformers gives no gradient: pad_id, and for -1 the last
  /// one.
  std::optional<int64_t> padding_row;
  /// Returns how many elements of a head, its first ones, rotate by position; 0: none.
  int64_t rotary_size() const {
    return learned_positions ? 0
                             : static_cast<int64_t>(static_cast<double>(head_size) * rope.partial);
  }
  bool layer_rotates(int64_t layer) const {
    return rotary_size() > 0 && (rotates.empty() || rotates[static_cast<size_t>(layer)]);
  }
  /// Returns the rotations of a head that layers have: none, one or two.
  std::vector<RopeConfig> rotations() const {
    if (rotary_size() == 0) return {};
    return window_rope ? std::vector{rope, *window_rope} : std::vector{rope};
  }
  bool operator==(const ModelConfig&) const = default;
};

/// Reads the text of a config.json as transformers 4 or 5 writes it; `where` is its path for
/// messages. Keys that do not change the mathematics are ignored. Refuses a config with one
/// Error(kBadInput) that lists every problem with its key, or with Error(kUnsupported) that names
/// the family or the features that ftrun does not have.
ModelConfig parse_model_config(std::string_view text, const std::string& where);

/// Returns the config as lines of "key value", for people and for goldens.
std::string config_text(const ModelConfig& config);

}  // namespace ftrun
