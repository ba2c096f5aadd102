#include "program/gpu_overhead.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "graph/op_spec.h"

namespace ftrun {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
/// CUDA's context (about 500 MiB on data center GPUs), and the machine code of the kernels that
/// ftrun and cuBLAS load.
constexpr int64_t kContext = 768 * kMiB;
/// The workspace of cuBLAS on Hopper, as kernels/cuda/matmul.cc allocates it; older GPUs take 4
/// MiB.
constexpr int64_t kBlasWorkspace = 32 * kMiB;
/// The buffers of one communicator: up to 32 channels of 4 MiB and their smaller protocols, for
/// rings, trees and messages.
constexpr int64_t kNcclBuffers = 512 * kMiB;
/// The buffers for sums in a fixed order of ranks, as comm/device_communicator.h allocates them.
constexpr int64_t kOrderedSums = 32 * kMiB;

/// Returns the bytes that libraries allocate outside the plan's scratch buffers, for the operation
/// that needs the most.
int64_t library_workspace_bytes(const StepPlan& plan) {
  int64_t largest = 0;
  for (const LayerGraph& graph : plan.train.model.graphs)
    for (const Op& op : graph.backward)
      if (const auto bytes = op_spec(op.kind).gpu_library_bytes)
        largest = std::max(largest, bytes(graph, op));
  return largest;
}

std::string per_group_text(const char* purpose, int64_t bytes, int64_t groups) {
  return cat(purpose, ", ", human_bytes(bytes), " for ",
             groups == 1 ? "its group" : cat("each of its ", groups, " groups"));
}

}  // namespace

std::vector<GpuOverhead> list_gpu_overheads(const Config& config, const StepPlan& plan) {
  if (config.device != DeviceKind::kCuda) return {};
  std::vector<GpuOverhead> overheads{{"CUDA's context and kernels", kContext},
                                     {"cuBLAS's workspace", kBlasWorkspace}};
  const AttentionChoice attention = config.kernels.attention;
  if (attention == AttentionChoice::kAuto || attention == AttentionChoice::kCudnn)
    if (const int64_t bytes = library_workspace_bytes(plan); bytes > 0)
      overheads.push_back({"cuDNN's workspace for attention", bytes});
  const auto groups = static_cast<int64_t>(plan.train.program.groups.size());
  if (groups == 0) return overheads;
  overheads.push_back(
      {per_group_text("NCCL's buffers", kNcclBuffers, groups), groups * kNcclBuffers});
  if (config.comm.deterministic)
    overheads.push_back(
        {per_group_text("sums in rank order (comm.deterministic)", kOrderedSums, groups),
         groups * kOrderedSums});
  return overheads;
}

int64_t total_bytes(const std::vector<GpuOverhead>& overheads) {
  int64_t sum = 0;
  for (const GpuOverhead& overhead : overheads) sum += overhead.bytes;
  return sum;
}

std::string gpu_overhead_text(const std::vector<GpuOverhead>& overheads) {
  if (overheads.empty()) return "";
  std::vector<std::string> parts;
  for (const GpuOverhead& overhead : overheads)
    parts.push_back(cat(overhead.description, ": ", human_bytes(overhead.bytes)));
  return cat("in addition to the plan, a GPU holds at most ", human_bytes(total_bytes(overheads)),
             " (", join(parts, "; "), ")");
}

}  // namespace ftrun
