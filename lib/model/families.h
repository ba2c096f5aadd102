#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "model/config_reader.h"
#include "model/description.h"
#include "model/model_config.h"
#include "model/tensor_names.h"

namespace ftrun {

/// ConfigKeys holds a family's names for the keys of config.json that all families have; null: the
/// family has no such key.
struct ConfigKeys {
  const char* hidden = "hidden_size";
  const char* feed_forward = "intermediate_size";
  const char* layers = "num_hidden_layers";
  const char* query_heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";
  const char* head_size = "head_dim";
  const char* positions = "max_position_embeddings";
  const char* norm_epsilon = "rms_norm_eps";
  const char* activation = "hidden_act";
  const char* attention_dropout = "attention_dropout";
  const char* rope_theta = "rope_theta";
  const char* partial_rotary = "partial_rotary_factor";
};

/// ConfigDefaults holds the values that a family's config class uses if config.json gives none; 0:
/// config.json must give the value.
struct ConfigDefaults {
  int64_t vocab_rows = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t query_heads = 0;
  /// The number of key and value heads; 0: as many as query heads.
  int64_t kv_heads = 0;
  /// The number of elements of a head; 0: the hidden size divided by the number of query heads.
  int64_t head_size = 0;
  int64_t positions = 0;
  /// The value of original_max_position_embeddings, which a class that has it prefers to that of
  /// rope_scaling.
  int64_t original_positions = 0;
  double norm_epsilon = 1e-6;
  double attention_dropout = 0;
  double rope_theta = 10000.0;
  /// The share of each head that rotates.
  double partial_rotary = 1.0;
  /// The padding token; -1: none.
  int64_t pad_id = -1;
  const char* activation = "silu";
  bool tied = false;
};

/// Family describes how the config.json of a family is read, and how its tensors are named.
/// build_decoder() makes the layers that the config describes.
///
/// CONTRIBUTING.md ("Adding a model family") says how to add one.
struct Family {
  /// The model_type of config.json.
  std::string_view model_type;
  /// The class in config.json's `architectures` that has this family's tensors.
  std::string_view architecture;
  ConfigKeys keys = {};
  ConfigDefaults defaults = {};
  TensorNames names = {};
  /// Says whether the class rotates a part of each head if config.json says so; other classes
  /// ignore that key.
  bool rotates_partly = false;
  /// Says whether layers with a sliding window have their own rotation.
  bool window_rotation = false;
  /// Says whether the class reads "yarn" as "longrope", the only scaling that it has.
  bool yarn_is_longrope = false;
  /// Says whether the class multiplies the queries of positions beyond the original context by a
  /// factor from llama_4_scaling_beta; sequences that long are refused.
  bool scales_far_queries = false;
  /// Sets the fields that differ between families; the common ones are set before.
  void (*read)(ConfigReader& reader, ModelConfig& config);
};

/// Records the dropouts that config.json requests under these keys; `class_default` is the class's
/// default if config.json has no such key. Training with dropout is refused (build_model()).
void record_dropouts(ConfigReader& reader, ModelConfig& config,
                     std::initializer_list<const char*> keys, double class_default = 0);

std::span<const Family> families();
/// Returns the family of a model_type, or null.
const Family* find_family(std::string_view model_type);
/// Returns the names of all families for messages: "llama, mistral, qwen2, ...".
std::string family_names();

/// Builds the description of a model for one batch shape and mode. `recompute` matters only for
/// kTrain; the graphs are those of one rank of `split`; an adapter adds its tensors. Throws one
/// Error(kUsage) with all reasons against a split, Error(kUnsupported) for training with attention
/// dropout and for dtypes that no kernel supports, and Error(kBadInput) for more than 2^31-1 tokens
/// in a micro-batch.
ModelDescription build_model(const ModelConfig& config, const BatchShape& batch, GraphMode mode,
                             const ModelDtypes& dtypes = {}, const RecomputeOptions& recompute = {},
                             const TensorSplit& split = {}, const Adapter& adapter = {});

// Declares the family of each line of list.inc: kNameFamily.
#define FTRUN_FAMILY(name) extern const Family k##name##Family;
#include "model/families/list.inc"
#undef FTRUN_FAMILY

}  // namespace ftrun
