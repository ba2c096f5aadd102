#include "ops/linear/workspace.h"

#include <algorithm>

#include "graph/layer_graph.h"
#include "graph/offset_allocator.h"

namespace ftrun {

MatmulWorkspace matmul_workspace(int64_t m, int64_t n, int64_t k, int64_t operand_bytes,
                                 int64_t result_bytes, bool quantized) {
  const bool narrow = is_narrow(operand_bytes), narrow_result = is_narrow(result_bytes);
  MatmulWorkspace w;
  w.rows =
      quantized && !narrow && !narrow_result ? m : std::min<int64_t>(m, quantized ? 2048 : 512);
  w.columns = std::min<int64_t>(n, 1024);
  w.depth = std::min<int64_t>(k, 2048);
  OffsetAllocator offsets;
  if (narrow) w.a = offsets.reserve(w.rows * w.depth * wide_bytes(operand_bytes));
  if (narrow || quantized) w.b = offsets.reserve(w.depth * w.columns * wide_bytes(operand_bytes));
  if (narrow_result) w.c = offsets.reserve(w.rows * w.columns * wide_bytes(result_bytes));
  w.bytes = offsets.bytes();
  return w;
}

int64_t matmul_workspace_bytes(const LayerGraph& graph, const Op& op, int64_t m, int64_t n,
                               int64_t k) {
  return matmul_workspace(m, n, k, dtype_bytes(graph.at(op.in[0]).dtype),
                          dtype_bytes(graph.at(op.out[0]).dtype),
                          static_cast<bool>(graph.at(op.in[1]).quantized))
      .bytes;
}

int64_t gpu_panel_columns(int64_t n, int64_t k) {
  constexpr int64_t kMaxElements = int64_t{64} << 20, kMinColumns = 64;
  return std::min(n, std::max(kMaxElements / k / kMinColumns, int64_t{1}) * kMinColumns);
}

}  // namespace ftrun
