#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "axes/tensor/split.h"
#include "model/model_config.h"
#include "model/tensor_names.h"

namespace ftrun {

/// ProductMatrix names the groups of products that are computed as one: their matrices are stacked
/// in one parameter.
enum class ProductMatrix : uint8_t { kQkv, kAttentionOut, kGateUp, kDown };
inline constexpr size_t kProductMatrices = 4;

/// LinearProduct is a product of a block, in the whole model, with a matrix [outputs, inputs].
struct LinearProduct {
  Projection projection;
  ProductMatrix matrix;
  int64_t outputs;
  int64_t inputs;
  /// Tensor-parallel ranks divide the product's outputs; groups of `copies` neighbouring ranks have
  /// the same outputs. False: the ranks divide its inputs.
  bool by_outputs;
  int copies;
  bool bias;
  /// The rows of this product in a file matrix that several products share: `run` neighbouring
  /// rows, and again every `stride` rows. 0: all its rows are neighbours.
  int64_t run = 0;
  int64_t stride = 0;
};

/// Returns the products that the family has, in the order of Projection.
std::vector<LinearProduct> block_products(const ModelConfig& config, const TensorSplit& split);

/// Return the names within a block of the norms that attention and MLP read.
std::string_view input_norm_name(const TensorNames& names, const ModelConfig& config);
std::string_view post_norm_name(const TensorNames& names, const ModelConfig& config);

/// Describes a rank's part of a product's matrix.
TensorInfo product_weight(const LinearProduct& product, std::string name, const TensorSplit& split);

/// Returns the number of outputs or of inputs that one rank computes with.
int64_t local_outputs(const LinearProduct& product, const TensorSplit& split);
int64_t local_inputs(const LinearProduct& product, const TensorSplit& split);

}  // namespace ftrun
