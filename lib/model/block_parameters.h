#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "base/enum_names.h"
#include "model/description.h"
#include "model/linear_layers.h"
#include "model/model_config.h"
#include "model/tensor_names.h"

namespace ftrun {

/// BlockNorm names the norms of a block's hidden states: those that attention and MLP read, and
/// those of their outputs.
enum class BlockNorm : uint8_t { kInput, kMlp, kAttentionOutput, kMlpOutput };
inline constexpr size_t kBlockNorms = enumerator_count<BlockNorm>();

/// HeadNorms stands for the norms of queries and of keys.
struct HeadNorms {};

/// BlockParameters is a row of kBlockParameters: a norm, a matrix of linear layers with its bias
/// and its adapters, or the norms of heads. A visitor of the rows that lacks one of these types
/// does not compile.
struct BlockParameters {
  BlockPart part;
  std::variant<BlockNorm, LinearMatrix, HeadNorms> kind;
};

/// kBlockParameters lists the parameters that a block may have, in the order in which it computes
/// with them. A block's graph has them in this order, and so have Layer::params, which decide the
/// layout of units, and the tensors of norms: checkpoints depend on it.
inline constexpr BlockParameters kBlockParameters[] = {
    {BlockPart::kAttention, BlockNorm::kInput},
    {BlockPart::kAttention, LinearMatrix::kQkv},
    {BlockPart::kAttention, HeadNorms{}},
    {BlockPart::kAttention, LinearMatrix::kAttentionOut},
    {BlockPart::kAttention, BlockNorm::kAttentionOutput},
    {BlockPart::kMlp, BlockNorm::kMlp},
    {BlockPart::kMlp, LinearMatrix::kGateUp},
    {BlockPart::kMlp, LinearMatrix::kDown},
    {BlockPart::kMlp, BlockNorm::kMlpOutput},
};

/// Returns the name of a norm in a block's graph: "input_norm".
std::string_view norm_value_name(BlockNorm norm);

/// Returns whether the blocks of a model have a norm.
bool has_norm(const ModelConfig& config, BlockNorm norm);

/// Returns the name of a norm's module within a block in files.
std::string_view module_name(const TensorNames& names, const ModelConfig& config, BlockNorm norm);

}  // namespace ftrun
