#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/rope_config.h"
#include "ops/activation/activations.h"

namespace ftrun {

/// NormKind is the norm in blocks and before the head: RMS norm (Zhang and Sennrich 2019), RMS norm
/// whose files store the weight minus 1, or layer norm (Ba et al. 2016).
enum class NormKind : uint8_t { kRms, kRmsStoredLessOne, kLayer };

/// QkNorm is the norm that is applied to queries and keys before the rotation.
enum class QkNorm : uint8_t {
  kNone,
  /// RMS norm of each query and key head; all query heads share weights, and so do all key heads.
  kEachHead,
  /// RMS norm of all query heads and of all key heads of a token together.
  kAllHeads,
  /// Layer norm of each query and key head without a bias; each head has its own weights.
  kLayerNormByHead,
};

/// ModelConfig holds the description of a decoder that a Hugging Face config.json gives, in one
/// form for all families.
struct ModelConfig {
  /// The model_type of Hugging Face: "llama", "mistral", "gpt2", ...
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
  /// The longest sequence for which the model was made; 0 when config.json does not say.
  int64_t max_positions = 0;
  NormKind norm = NormKind::kRms;
  /// Says whether norms have a weight; only layer norms can lack it, and have no bias then.
  bool norm_weight = true;
  /// Says whether layer norms have a bias.
  bool norm_bias = true;
  double norm_epsilon = 1e-6;
  Activation activation = Activation::kSilu;
  /// Says whether the MLP is down(act(gate(x)) * up(x)). False: it is down(act(up(x))).
  bool gated = true;
  /// Says whether positions have vectors that are added to the tokens' vectors; heads do not rotate
  /// then.
  bool learned_positions = false;
  /// The number of vectors in the position table before that of the first position.
  int64_t position_offset = 0;
  /// Says whether the output matrix is the embedding matrix.
  bool tied = false;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  /// Says whether the output matrix has a bias; the embedding has none.
  bool head_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  /// Says whether attention reads the norm of the hidden states. False: the hidden states
  /// themselves.
  bool input_norm = true;
  /// Says whether the MLP reads its own norm of the hidden states. False: it reads the hidden
  /// states or, with a parallel residual, the input of attention.
  bool mlp_norm = true;
  /// Says whether the outputs of attention and MLP are normalized before they are added to the
  /// hidden states.
  bool output_norms = false;
  /// Says whether attention and MLP read the same hidden states, to which both outputs are added: x
  /// + attention(x) + mlp(x). False: the MLP reads the hidden states after attention's output was
  /// added.
  bool parallel_residual = false;
  /// The factors of the embedding's rows, of the outputs of attention and MLP, and of logits.
  double embedding_scale = 1.0;
  double residual_scale = 1.0;
  double logit_scale = 1.0;
  /// Says whether the factor embedding_scale is rounded to the dtype of activations, as the
  /// family's class does.
  bool rounds_embedding_scale = false;
  /// The factor of attention's scores; none: 1 / sqrt(head_size).
  std::optional<double> attention_scale;
  /// The bounds on attention's scores and on logits; 0: none.
  double attention_softcap = 0;
  double logit_softcap = 0;
  /// The keys of config.json that request dropout in training.
  std::vector<std::string> dropouts;
  RopeConfig rope;
  /// The number of tokens of the longest sequences that ftrun computes like other families; longer
  /// ones are refused. 0: no limit.
  int64_t max_unscaled_positions = 0;
  /// Says whether neighboring elements of a head (2i, 2i+1) rotate together. False: elements at the
  /// same position of its two halves rotate together.
  bool rotates_pairs = false;
  /// Says for each layer whether its heads rotate; empty: all do.
  std::vector<bool> rotates;
  /// The rotation of layers with a sliding window, where it differs.
  std::optional<RopeConfig> window_rope;
  /// The sliding window of each layer in tokens; 0 = full attention.
  std::vector<int64_t> windows;
  /// The dtype the weights were saved in, when config.json names one that ftrun knows.
  std::optional<DType> dtype;
  std::vector<int64_t> eos_ids;
  std::optional<int64_t> bos_id;
  std::optional<int64_t> pad_id;
  /// The row of the embedding to which transformers gives no gradient: pad_id; -1 stands for the
  /// last row.
  std::optional<int64_t> padding_row;
  /// Returns the number of elements of a head that rotate by position, which are its first ones; 0:
  /// none.
  int64_t rotary_size() const {
    return learned_positions ? 0
                             : static_cast<int64_t>(static_cast<double>(head_size) * rope.partial);
  }
  /// Returns whether norms have a bias in addition to their weight.
  bool has_norm_bias() const { return norm == NormKind::kLayer && norm_weight && norm_bias; }
  bool layer_rotates(int64_t layer) const {
    return rotary_size() > 0 && (rotates.empty() || rotates[static_cast<size_t>(layer)]);
  }
  /// Returns the different rotations of the model's layers: none, one or two.
  std::vector<RopeConfig> rotations() const {
    if (rotary_size() == 0) return {};
    return window_rope ? std::vector{rope, *window_rope} : std::vector{rope};
  }
  bool operator==(const ModelConfig&) const = default;
};

/// Reads the text of a config.json as transformers 4 or 5 writes it; `where` is its path for
/// messages. Keys that do not change the mathematics are ignored. Throws one Error(kBadInput) that
/// lists every problem with its key, or Error(kUnsupported) that names the family or the features
/// that ftrun lacks.
ModelConfig parse_model_config(std::string_view text, const std::string& where);

/// Returns the config as readable lines of "key value"; tests compare them with recorded ones.
std::string config_text(const ModelConfig& config);

}  // namespace ftrun
