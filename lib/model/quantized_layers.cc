#include "model/quantized_layers.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/linear_layers.h"

namespace ftrun {
namespace {

bool has_whole_rows(const TensorInfo& tensor) {
  return tensor.local.extent[1] == tensor.shape[1];
}

/// Returns whether runs of `count` elements of the rank's part, counted from its first element, are
/// also runs of the whole tensor, counted from the tensor's first element.
bool keeps_runs(const TensorInfo& tensor, int64_t count) {
  const int64_t columns = tensor.shape[1];
  if (has_whole_rows(tensor)) return tensor.local.offset[0] * columns % count == 0;
  return columns % count == 0 && tensor.local.offset[1] % count == 0 &&
         tensor.local.extent[1] % count == 0;
}

std::string find_block_fault(const TensorInfo& tensor, const QuantizedFormat& format,
                             bool ends_matrix) {
  const int64_t columns = tensor.local.extent[1];
  if (format.type == QuantizationType::kInt8 && columns % format.block != 0)
    return cat("rows of ", columns, " elements are not a multiple of ", format.block);
  if (!keeps_runs(tensor, format.block))
    return cat("ranks' parts of ", tensor.local.extent[0], " x ", columns, " cut blocks of ",
               format.block, " elements");
  if (!ends_matrix && tensor.local_numel() % kQuantizedRecord != 0)
    return cat(tensor.local_numel(), " elements are not a multiple of ", kQuantizedRecord,
               ", and another matrix is multiplied with it");
  return "";
}

/// RankWeight is a rank's part of the weight of a linear layer.
struct RankWeight {
  TensorInfo tensor;
  /// Says whether the weight is the last of those that are multiplied as one matrix.
  bool ends_matrix;
};

std::vector<RankWeight> list_rank_weights(const ModelConfig& config, const TensorSplit& split) {
  const TensorNames& names = tensor_names(config.family);
  const std::vector<LinearLayer> linear_layers = block_linear_layers(config, split);
  std::vector<RankWeight> weights;
  for (size_t i = 0; i < linear_layers.size(); ++i) {
    const bool ends =
        i + 1 == linear_layers.size() || linear_layers[i + 1].matrix != linear_layers[i].matrix;
    const std::string_view name = last_path_part(names.linear_layer(linear_layers[i].projection));
    weights.push_back({linear_weight(linear_layers[i], std::string(name), split), ends});
  }
  return weights;
}

std::vector<std::string> list_format_problems(const std::vector<RankWeight>& weights,
                                              const QuantizedFormat& format) {
  std::vector<std::string> problems;
  for (const RankWeight& weight : weights)
    if (const std::string text = find_block_fault(weight.tensor, format, weight.ends_matrix);
        !text.empty())
      problems.push_back(cat(weight.tensor.name, ": ", text));
  return problems;
}

/// Lists the formats that fit the weights, for a remedy: "nf4 with block: 64".
std::vector<std::string> list_fitting_formats(const std::vector<RankWeight>& weights) {
  std::vector<std::string> formats;
  for (const int64_t block : {64, 128, 256})
    if (list_format_problems(weights, {QuantizationType::kNf4, block}).empty())
      formats.push_back(cat("nf4 with block: ", block));
  if (list_format_problems(weights, {QuantizationType::kInt8}).empty()) formats.push_back("int8");
  return formats;
}

}  // namespace

QuantizedFormat fit_quantized_format(const ModelConfig& config, const TensorSplit& split,
                                     QuantizedFormat format) {
  if (!format) return format;
  const std::vector<RankWeight> weights = list_rank_weights(config, split);
  if (const std::vector<std::string> problems = list_format_problems(weights, format);
      !problems.empty()) {
    const std::vector<std::string> others = list_fitting_formats(weights);
    throw Error(
        ExitCode::kUsage,
        cat("quantization: the model's matrices cannot be quantized in this format",
            split.degree > 1 ? cat(" on ", split.degree, " tensor-parallel ranks") : "", "\n  ",
            join(problems, "\n  ")),
        cat(others.empty() ? "" : cat("use ", join(others, " or "), "; or "),
            split.degree > 1 ? "use another parallel.tensor, or " : "", "remove quantization"));
  }
  for (const RankWeight& weight : weights)
    if (format.double_quantized && !keeps_runs(weight.tensor, kQuantizedRecord))
      format.holds_scales = true;
  return format;
}

}  // namespace ftrun
