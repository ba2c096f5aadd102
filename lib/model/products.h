#pragma once

#include <cstdint>
#include <vector>

#include <string_view>

#include "axes/tensor/split.h"
#include "model/config.h"
#include "model/tensor_names.h"

namespace ftrun {

/// ProductMatrix names products that are computed as one: their matrices lie under each other in
/// one parameter.
enum class ProductMatrix : uint8_t { kQkv, kAttentionOut, kGateUp, kDown };
inline constexpr size_t kProductMatrices = 4;

/// LinearProduct is a product of a block of the whole model, with a matrix [outputs, inputs].
struct LinearProduct {
  Projection projection;
  ProductMatrix matrix;
  int64_t outputs;
  int64_t inputs;
  /// Tensor-parallel ranks share out its outputs, of which `copies` neighbouring ranks have the
  /// same; else its inputs.
  bool by_outputs;
  int copies;
  bool bias;
  /// The rows of its outputs in a matrix that several products share: `run` of them are neighbours,
  /// and the next ones come `stride` rows later; 0: all of them are neighbours.
  int64_t run = 0;
  int64_t stride = 0;
};

/// Returns the products that the family has, in the order of Projection.
std::vector<LinearProduct> block_products(const ModelConfig& config, const TensorSplit& split);

/// Return the modules within a block of the norms that attention and MLP read.
std::string_view input_norm_name(const TensorNames& names, const ModelConfig& config);
std::string_view post_norm_name(const TensorNames& names, const ModelConfig& config);

/// Describes what a rank has of a product's matrix.
TensorInfo product_weight(const LinearProduct& product, std::string name, const TensorSplit& split);

/// Return the outputs and inputs that one rank computes.
int64_t local_outputs(const LinearProduct& product, const TensorSplit& split);
int64_t local_inputs(const LinearProduct& product, const TensorSplit& split);

}  // namespace ftrun
