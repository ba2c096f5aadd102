#pragma once

#include <cstdint>

namespace ftrun {

struct LayerGraph;
struct Op;

/// MatmulWorkspace holds the byte offsets of the F32 panels through which a matrix multiplication
/// c[m,n] = a[m,k] b[k,n] with 16-bit operands or a 16-bit result is computed; -1 for matrices that
/// are not in 16 bits.
struct MatmulWorkspace {
  /// The largest sizes of panels: a[rows,depth], b[depth,columns], c[rows,columns].
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  int64_t a = -1;
  int64_t b = -1;
  int64_t c = -1;
  int64_t bytes = 0;
};
/// Returns the offsets of a multiplication's panels. If b is `quantized`, panels of it are
/// dequantized, each for as many rows of a as there is room for.
MatmulWorkspace matmul_workspace(int64_t m, int64_t n, int64_t k, int64_t operand_bytes,
                                 int64_t result_bytes, bool quantized = false);

/// Returns the bytes of the panels of a multiplication by operand 1 whose result is result 0; `m`,
/// `n`, `k` as in matmul_workspace().
int64_t matmul_workspace_bytes(const LayerGraph& graph, const Op& op, int64_t m, int64_t n,
                               int64_t k);

/// Returns how many of the result's n columns one part gives, in a multiplication of depth k by a
/// quantized weight that is dequantized part by part. Parts are large, because large
/// multiplications are faster.
int64_t gpu_panel_columns(int64_t n, int64_t k);

}  // namespace ftrun
