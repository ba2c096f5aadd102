#include "graph/op_workspace.h"

#include <algorithm>

#include "base/round_up.h"
#include "graph/layer_graph.h"
#include "graph/offset_allocator.h"
#include "graph/op_spec.h"

namespace ftrun {

int64_t count_gpu_partials(int64_t tokens) {
  return std::clamp(divide_up(tokens, kGpuPartialRows), int64_t{1}, kMaxGpuPartials);
}

namespace workspace_of {

int64_t none(const LayerGraph& /*graph*/, const Op& /*op*/) {
  return 0;
}

/// Counts the bytes of one partial gradient for every kWgradRows tokens of dy, in 32 bits or more.
int64_t partial_gradients(const LayerGraph& graph, const Op& op) {
  int64_t width = 0;
  for (const ValueId gradient : op.out) width += element_count(graph.at(gradient).dims);
  const Value& dy = graph.at(op.in[0]);
  return divide_up(dy.dims[0], kWgradRows) * width * wide_bytes(dtype_bytes(dy.dtype));
}

int64_t gpu_partial_sums(const LayerGraph& graph, const Op& op) {
  int64_t widest = 0;
  for (const ValueId gradient : op.out)
    widest = std::max(widest, element_count(graph.at(gradient).dims));
  return count_gpu_partials(graph.at(op.in[0]).dims[0]) * widest * dtype_bytes(DType::kF32);
}

}  // namespace workspace_of

int64_t workspace_bytes(const LayerGraph& graph, const Op& op) {
  const OpSpec& spec = op_spec(op.kind);
  const auto workspace =
      graph.dtypes.kernels == KernelDevice::kGpu ? spec.gpu_workspace : spec.workspace;
  return workspace == nullptr ? 0 : workspace(graph, op);
}

}  // namespace ftrun
