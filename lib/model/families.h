#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/config_reader.h"
#include "model/description.h"

namespace ftrun {

/// A family of models: how its config.json is read and how its layers are built.
///
/// To add a family: write a file in model/families/ with a `read` (what its config class defaults
/// to, which features it has) and a `build` (or use build_decoder when the family is Llama-shaped:
/// embedding, pre-norm blocks of attention and gated MLP, final norm and output matrix), declare
/// the Family below, add it to families() in families.cc, and add its fixtures to tests/model.
/// A `build` that is not build_decoder names its tensors with a map of its own, as
/// model/decoder.cc does; nothing else in ftrun knows names of tensors.
struct Family {
  /// config.json's model_type.
  std::string_view model_type;
  /// The class in config.json's `architectures` that has this family's tensors.
  std::string_view architecture;
  /// What the config class takes when config.json has no num_key_value_heads or head_dim at all;
  /// 0 = num_attention_heads, and hidden_size / num_attention_heads.
  int64_t default_kv_heads;
  int64_t default_head_size;
  /// Fills what the families differ in; the dimensions that all have are there already.
  void (*read)(ConfigReader& reader, ModelConfig& config);
  ModelDescription (*build)(const ModelConfig& config, const BatchShape& batch, Mode mode,
                            const ModelDtypes& dtypes, const RecomputeOptions& recompute,
                            const TensorSplit& split, const Adapter& adapter);
};

std::span<const Family> families();
/// The family of a model_type, or null.
const Family* find_family(std::string_view model_type);
/// "llama, mistral, qwen2, qwen3, granite": for messages.
std::string family_names();

/// Builds the description of a model for one batch shape and mode; `recompute` counts for kTrain,
/// and the graphs are those of one rank of `split`; with an adapter its tensors come on top. Error(kUsage) with all that keeps a model from
/// being split so. Error(kUnsupported) for training with attention dropout; Error(kBadInput) for
/// more than 2^31-1 tokens in a micro-batch; Error(kUnsupported) for dtypes no kernel computes
/// with.
ModelDescription build_model(const ModelConfig& config, const BatchShape& batch, Mode mode,
                             const ModelDtypes& dtypes = {}, const RecomputeOptions& recompute = {},
                             const TensorSplit& split = {}, const Adapter& adapter = {});

extern const Family kLlamaFamily;
extern const Family kMistralFamily;
extern const Family kQwen2Family;
extern const Family kQwen3Family;
extern const Family kGraniteFamily;

}  // namespace ftrun
