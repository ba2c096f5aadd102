#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;

/// DoraWorkspace holds byte offsets in the scratch of dora_squared_lengths, -1 for what it does not
/// use; all of the type that is computed with.
struct DoraWorkspace {
  /// Rows of W that are computed together.
  int64_t rows = 0;
  /// [rows,I] of W + scale B A; [rows, largest r] of scale B; [J,I] of A where that is in 16 bits.
  int64_t panel = -1;
  int64_t b = -1;
  int64_t a = -1;
  int64_t bytes = 0;
};
DoraWorkspace dora_workspace(const LayerGraph& graph, const Op& op);

/// GpuDoraWorkspace holds byte offsets in the scratch of dora_squared_lengths on a GPU.
struct GpuDoraWorkspace {
  /// Rows of the matrix at a time.
  int64_t rows = 0;
  /// F32[rows, I]: scale B A; [rows, I] in the dtype of the activations: the weight where that is
  /// packed.
  int64_t delta = 0;
  int64_t weight = -1;
  int64_t bytes = 0;
};
/// Returns the places for parts with `columns` rows of the weight at most.
GpuDoraWorkspace gpu_dora_workspace(int64_t columns, int64_t inputs, int64_t element_bytes,
                                    bool is_packed);

}  // namespace ftrun
