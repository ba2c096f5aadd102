#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// The products of a block.
enum class Projection : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr size_t kProjections = 7;
/// "q", "gate"
std::string_view role_name(Projection projection);

/// Names of a family's modules in Hugging Face's files: the one place that knows them. Paths of a
/// block's modules stand behind `blocks` and the block's number.
struct TensorNames {
  /// What a file of the model without its head leaves out in front of each name.
  std::string_view root = "model.";
  std::string_view embedding = "model.embed_tokens";
  /// A vector for each position, which is added to the token's; empty: the family has none.
  std::string_view positions = {};
  std::string_view blocks = "model.layers.";
  std::string_view input_norm = "input_layernorm";
  std::string_view post_norm = "post_attention_layernorm";
  std::string_view q_norm = "self_attn.q_norm";
  std::string_view k_norm = "self_attn.k_norm";
  /// By Projection. Neighbours of one name are rows of one matrix in the files, in this order, and
  /// have one adapter together; empty: the family has no such product.
  std::array<std::string_view, kProjections> products{
      "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
      "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
  std::string_view norm = "model.norm";
  std::string_view head = "lm_head";
  /// Files hold the products' matrices as [inputs, outputs].
  bool transposed = false;
  /// Ends of the names of buffers that files hold and no model reads.
  std::array<std::string_view, 3> ignored{"rotary_emb.inv_freq", ".masked_bias", {}};
  /// What gets an adapter where a config names no modules, as PEFT has it where it has a rule.
  std::array<std::string_view, 2> adapted{"q_proj", "v_proj"};

  std::string_view product(Projection projection) const {
    return products[static_cast<size_t>(projection)];
  }
  /// "model.layers.3.mlp.up_proj"
  std::string in_block(int64_t layer, std::string_view module) const;
};

/// The names of a family's modules; those of most families where the family is not known.
const TensorNames& tensor_names(std::string_view family);

/// Products whose matrices are rows of one in the files, and whose module is therefore one.
struct ProductModule {
  std::string_view name;
  std::vector<Projection> products;
};

/// In the order of Projection.
std::vector<ProductModule> product_modules(const TensorNames& names);

/// The last parts of the paths of all products of blocks: q_proj, k_proj, ...
std::vector<std::string> adaptable_names(const TensorNames& names);
/// What a family adapts where a config names no modules: q_proj, v_proj.
std::vector<std::string> adapted_by_default(const TensorNames& names);

/// "q_proj" of "self_attn.q_proj"
std::string_view last_part(std::string_view module);

}  // namespace ftrun
