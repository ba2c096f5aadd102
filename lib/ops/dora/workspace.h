#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;

/// DoraWorkspace holds byte offsets in the scratch of dora_squared_lengths, -1 for what it does not
/// use. All elements have the type of the arithmetic.
struct DoraWorkspace {
  /// The number of rows of W that are computed together.
  int64_t rows = 0;
  /// The offsets of [rows,I], W + scale B A; of [rows, largest r], scale B; and of [J,I], A where
  /// it is in 16 bits.
  int64_t panel = -1;
  int64_t b = -1;
  int64_t a = -1;
  int64_t bytes = 0;
};
DoraWorkspace dora_workspace(const LayerGraph& graph, const Op& op);

/// GpuDoraWorkspace holds byte offsets in the scratch of dora_squared_lengths on a GPU.
struct GpuDoraWorkspace {
  /// The number of rows of the matrix that are computed together.
  int64_t rows = 0;
  /// The offsets of F32[rows, I], scale B A, and of [rows, I] in the dtype of the activations, the
  /// weight where it is quantized.
  int64_t delta = 0;
  int64_t weight = -1;
  int64_t bytes = 0;
};
/// Returns the offsets for parts with at most `columns` rows of the weight.
GpuDoraWorkspace gpu_dora_workspace(int64_t columns, int64_t inputs, int64_t element_bytes,
                                    bool is_quantized);

}  // namespace ftrun
