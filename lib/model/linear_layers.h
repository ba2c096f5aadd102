#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "axes/tensor/split.h"
#include "model/model_config.h"
#include "model/tensor_names.h"

namespace ftrun {

/// LinearMatrix names the groups of linear layers that are computed as one: their matrices are
/// stacked in one parameter.
enum class LinearMatrix : uint8_t { kQkv, kAttentionOut, kGateUp, kDown };
inline constexpr size_t kLinearMatrices = 4;

/// LinearLayer describes a projection of a block in the whole model, with a matrix
/// [outputs, inputs].
struct LinearLayer {
  Projection projection;
  LinearMatrix matrix;
  int64_t outputs;
  int64_t inputs;
  /// Says whether tensor-parallel ranks divide the linear layer's outputs; groups of `copies`
  /// neighboring ranks have the same outputs. False: the ranks divide its inputs.
  bool is_split_by_outputs;
  int copies;
  bool bias;
  /// The rows of this linear layer in a file matrix that several linear layers share:
  /// `rows_together` neighboring rows, and again every `stride` rows. 0: all its rows are
  /// neighbors.
  int64_t rows_together = 0;
  int64_t stride = 0;
};

/// Returns the linear layers that the family has, in the order of Projection.
std::vector<LinearLayer> block_linear_layers(const ModelConfig& config, const TensorSplit& split);

/// Describes a rank's part of a linear layer's matrix.
TensorInfo linear_weight(const LinearLayer& linear, std::string name, const TensorSplit& split);

/// Returns the number of outputs or of inputs that one rank computes with.
int64_t local_outputs(const LinearLayer& linear, const TensorSplit& split);
int64_t local_inputs(const LinearLayer& linear, const TensorSplit& split);

}  // namespace ftrun
