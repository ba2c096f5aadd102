#include "model/block_parameters.h"

#include "base/error.h"

namespace ftrun {
namespace {

template <typename Kind>
consteval size_t count_rows() {
  size_t rows = 0;
  for (const BlockParameters& each : kBlockParameters)
    if (std::holds_alternative<Kind>(each.kind)) ++rows;
  return rows;
}

static_assert(count_rows<BlockNorm>() == kBlockNorms, "each norm of a block has a row");
static_assert(count_rows<LinearMatrix>() == kLinearMatrices, "each matrix of a block has a row");

}  // namespace

std::string_view norm_value_name(BlockNorm norm) {
  switch (norm) {
    case BlockNorm::kInput:
      return "input_norm";
    case BlockNorm::kMlp:
      return "mlp_norm";
    case BlockNorm::kAttentionOutput:
      return "attention_output_norm";
    case BlockNorm::kMlpOutput:
      return "mlp_output_norm";
  }
  bug("no such norm of a block");
}

bool has_norm(const ModelConfig& config, BlockNorm norm) {
  switch (norm) {
    case BlockNorm::kInput:
      return config.input_norm;
    case BlockNorm::kMlp:
      return config.mlp_norm;
    case BlockNorm::kAttentionOutput:
    case BlockNorm::kMlpOutput:
      return config.output_norms;
  }
  bug("no such norm of a block");
}

std::string_view module_name(const TensorNames& names, const ModelConfig& config, BlockNorm norm) {
  // Attention and MLP are parallel, each with its own norm.
  const bool is_parallel = config.parallel_residual && config.mlp_norm;
  switch (norm) {
    case BlockNorm::kInput:
      return is_parallel && !names.parallel_input_norm.empty() ? names.parallel_input_norm
                                                               : names.input_norm;
    case BlockNorm::kMlp:
      return is_parallel && !names.parallel_mlp_norm.empty() ? names.parallel_mlp_norm
                                                              : names.mlp_norm;
    case BlockNorm::kAttentionOutput:
      return names.attention_output_norm;
    case BlockNorm::kMlpOutput:
      return names.mlp_output_norm;
  }
  bug("no such norm of a block");
}

}  // namespace ftrun
