#include "graph/scratch.h"

#include <algorithm>
#include <numeric>

#include "base/round_up.h"
#include "graph/layer_graph.h"
#include "graph/op_spec.h"
#include "graph/storage.h"

namespace ftrun {
namespace {

/// Counts how often a list reads each value.
std::vector<int> count_reads(const LayerGraph& graph, std::span<const Op> list) {
  std::vector<int> reads(graph.values.size());
  for (const Op& op : list)
    for (const ValueId id : op.in) ++reads[static_cast<size_t>(id)];
  return reads;
}

/// Returns for each value whether it is used only in `list`. A kDeferred value counts if the list
/// both writes it and has all its readers.
std::vector<bool> find_scratch_values(const LayerGraph& graph, std::span<const Op> list) {
  std::vector<bool> is_written(graph.values.size());
  for (const Op& op : list)
    for (const ValueId id : op.out) is_written[static_cast<size_t>(id)] = true;
  const std::vector<int> reads_in_list = count_reads(graph, list),
                         all_reads = count_reads(graph, graph.backward);
  std::vector<bool> scratch(graph.values.size());
  for (size_t i = 0; i < scratch.size(); ++i) {
    const ValueRole role = graph.values[i].role;
    scratch[i] =
        role == ValueRole::kTemp || role == ValueRole::kWorkspace ||
        (role == ValueRole::kDeferred && is_written[i] && reads_in_list[i] == all_reads[i]);
  }
  return scratch;
}

/// Places values one after another.
ScratchPlan plan_consecutively(const LayerGraph& graph, const std::vector<ValueId>& values) {
  ScratchPlan plan;
  plan.offset.assign(graph.values.size(), -1);
  for (const ValueId id : values) {
    plan.offset[static_cast<size_t>(id)] = plan.bytes;
    plan.bytes += round_up(graph.at(id).bytes(), kStorageAlignment);
  }
  return plan;
}

void extend_lifetime(StorageRequest& request, int64_t at) {
  request.first = std::min(request.first, at);
  request.last = std::max(request.last, at);
}

/// Returns, for each operation, the index in the list at which it is known to be done. For a
/// collective, which may run at the same time as later operations, this is the first operation that
/// reads its result, or the end of the list; for any other operation it is its own index.
std::vector<int64_t> completion_indices(std::span<const Op> list) {
  std::vector<int64_t> done(list.size());
  for (size_t i = list.size(); i-- > 0;) {
    done[i] = static_cast<int64_t>(i);
    if (!is_collective(list[i].kind)) continue;
    const auto reader = std::find_if(list.begin() + done[i] + 1, list.end(), [&](const Op& op) {
      return std::find(op.in.begin(), op.in.end(), list[i].out[0]) != op.in.end();
    });
    done[i] = reader == list.end() ? static_cast<int64_t>(list.size()) - 1
                                   : done[static_cast<size_t>(reader - list.begin())];
  }
  return done;
}

/// Lets the output of an in-place operation use the storage of an input that nothing reads later.
/// `root` maps each value to the value whose storage it uses. Operands of collectives stay alive
/// until the collective is done.
void join_in_place(const LayerGraph& graph, std::span<const Op> list,
                   const std::vector<bool>& scratch, std::vector<StorageRequest>& requests,
                   std::vector<ValueId>& root) {
  const std::vector<int64_t> done = completion_indices(list);
  const auto storage_of = [&](ValueId id) -> StorageRequest& {
    return requests[static_cast<size_t>(root[static_cast<size_t>(id)])];
  };
  const auto can_join = [&](size_t i) {
    const ValueId from = in_place_input(list[i]);
    if (from < 0) return false;
    const ValueId to = list[i].out[0];
    return scratch[static_cast<size_t>(from)] && scratch[static_cast<size_t>(to)] &&
           graph.at(from).bytes() == graph.at(to).bytes() &&
           storage_of(from).last == static_cast<int64_t>(i);
  };
  for (size_t i = 0; i < list.size(); ++i) {
    const Op& op = list[i];
    if (can_join(i)) {
      const ValueId from = in_place_input(op);
      StorageRequest& other = requests[static_cast<size_t>(op.out[0])];
      storage_of(from).last = other.last;
      other.bytes = 0;
      root[static_cast<size_t>(op.out[0])] = root[static_cast<size_t>(from)];
    }
    if (!is_collective(op.kind)) continue;
    for (const ValueId id : {op.in[0], op.out[0]})
      if (scratch[static_cast<size_t>(id)]) extend_lifetime(storage_of(id), done[i]);
  }
}

}  // namespace

ScratchPlan plan_scratch(const LayerGraph& graph, std::span<const Op> list) {
  const std::vector<bool> scratch = find_scratch_values(graph, list);
  std::vector<StorageRequest> requests(graph.values.size());
  std::vector<ValueId> root(graph.values.size());
  std::iota(root.begin(), root.end(), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    const auto mark = [&](ValueId id) {
      if (id < 0 || !scratch[static_cast<size_t>(id)]) return;
      StorageRequest& request = requests[static_cast<size_t>(id)];
      request.bytes = graph.at(id).bytes();
      extend_lifetime(request, static_cast<int64_t>(i));
    };
    for (const ValueId id : list[i].in) mark(id);
    for (const ValueId id : list[i].out) mark(id);
    mark(list[i].workspace);
    if (graph.dtypes.kernels == KernelDevice::kGpu && i > 0 && is_gpu_pair(list, i - 1))
      mark(list[i - 1].workspace);
  }
  join_in_place(graph, list, scratch, requests, root);
  const StorageLayout layout = pack_storage(requests, kStorageAlignment);
  ScratchPlan plan;
  plan.bytes = layout.bytes;
  plan.offset.assign(graph.values.size(), -1);
  for (size_t i = 0; i < requests.size(); ++i)
    plan.offset[i] = layout.offset[static_cast<size_t>(root[i])];
  return plan;
}

ScratchPlan plan_saved(const LayerGraph& graph, SavedValueReader which) {
  std::vector<ValueId> values = graph.values_with_role(ValueRole::kSaved);
  if (which != SavedValueReader::kBackward) {
    const std::vector<int> reads = count_reads(graph, graph.weight_grad);
    std::erase_if(values, [&](ValueId id) {
      return (reads[static_cast<size_t>(id)] > 0) != (which == SavedValueReader::kWeightGrad);
    });
  }
  return plan_consecutively(graph, values);
}

ScratchPlan plan_deferred(const LayerGraph& graph) {
  return plan_consecutively(graph, graph.values_with_role(ValueRole::kDeferred));
}

}  // namespace ftrun
