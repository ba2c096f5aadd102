#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// Projection names a linear layer of a block.
enum class Projection : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr size_t kProjections = 7;
/// Returns the name of a projection: "q", "gate", ...
std::string_view role_name(Projection projection);

/// TensorNames holds the names of a family's modules in Hugging Face's files. Only these defaults
/// and the files of the families contain them. The path of a block's module follows `blocks` and
/// the block's number.
struct TensorNames {
  /// The prefix that a file of the model without its head leaves out.
  std::string_view root = "model.";
  std::string_view embedding = "model.embed_tokens";
  /// The table of position vectors, which are added to the tokens' vectors; empty: the family has
  /// none.
  std::string_view positions = {};
  std::string_view blocks = "model.layers.";
  std::string_view input_norm = "input_layernorm";
  std::string_view mlp_norm = "post_attention_layernorm";
  /// The names of these two norms if attention and MLP are parallel with a norm each; empty: the
  /// same names as above.
  std::string_view parallel_input_norm = {};
  std::string_view parallel_mlp_norm = {};
  /// The norms of the outputs of attention and MLP; empty: the family has none.
  std::string_view attention_output_norm = {};
  std::string_view mlp_output_norm = {};
  /// The norms of queries and keys. A '*' stands for the number of a head, if each head has its own
  /// tensor.
  std::string_view q_norm = "self_attn.q_norm";
  std::string_view k_norm = "self_attn.k_norm";
  /// The linear layers' modules, by Projection. Neighbors with the same name are rows of one
  /// matrix in the files, in this order, and share one adapter; empty: the family has no such
  /// linear layer.
  std::array<std::string_view, kProjections> linear_layers{
      "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
      "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
  std::string_view norm = "model.norm";
  std::string_view head = "lm_head";
  /// Says whether files hold the linear layers' matrices as [inputs, outputs].
  bool transposed = false;
  /// Says whether the rows of a matrix of q, k and v are ordered by key head: the rows of the query
  /// heads that share a key head, then the rows of the key head, then those of its value head.
  /// False: all of q, then all of k, then all of v.
  bool rows_by_key_head = false;
  /// Endings of the names of buffers that files contain and no model reads.
  std::array<std::string_view, 3> ignored_suffixes{"rotary_emb.inv_freq", ".masked_bias", {}};
  /// The modules that get an adapter if a config names none: those that PEFT chooses, if it has a
  /// rule for the family.
  std::array<std::string_view, 4> default_targets{"q_proj", "v_proj"};

  std::string_view linear_layer(Projection projection) const {
    return linear_layers[static_cast<size_t>(projection)];
  }
  /// Returns the path of a block's module: "model.layers.3.mlp.up_proj".
  std::string in_block(int64_t layer, std::string_view module) const;
};

/// Returns the names of a family's modules; for an unknown family those that most families use.
const TensorNames& tensor_names(std::string_view family);

/// LinearModule is a module of the files; the matrices of its linear layers are rows of its matrix.
struct LinearModule {
  std::string_view name;
  std::vector<Projection> projections;
};

/// Lists the modules of a family's linear layers, in the order of Projection.
std::vector<LinearModule> linear_modules(const TensorNames& names);

/// Lists the last parts of the paths of all linear layers' modules: q_proj, k_proj, ...
std::vector<std::string> adaptable_module_names(const TensorNames& names);
/// Lists the modules that a family adapts if a config names none: q_proj, v_proj.
std::vector<std::string> default_target_modules(const TensorNames& names);

/// Returns the last part of a module's path: "q_proj" of "self_attn.q_proj".
std::string_view last_path_part(std::string_view module);

}  // namespace ftrun
