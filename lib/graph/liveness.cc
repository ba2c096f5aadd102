#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "graph/storage.h"

namespace ftrun {
namespace {

bool lives_in_scratch(const Value& value) {
  return value.role == ValueRole::kTemp || value.role == ValueRole::kWorkspace;
}

void touch(StorageRequest& request, int64_t at) {
  request.first = std::min(request.first, at);
  request.last = std::max(request.last, at);
}

/// Joins the output of an in-place kind with its dying input: `root` maps values to the value whose
/// storage they use.
void join_in_place(const LayerGraph& graph, std::span<const Op> list,
                   std::vector<StorageRequest>& requests, std::vector<ValueId>& root) {
  for (size_t i = 0; i < list.size(); ++i) {
    const Op& op = list[i];
    const int operand = in_place_input(op.kind);
    if (operand < 0) continue;
    const ValueId from = op.in[static_cast<size_t>(operand)];
    const ValueId to = op.out[0];
    const bool both_scratch = lives_in_scratch(graph.at(from)) && lives_in_scratch(graph.at(to));
    if (!both_scratch || graph.at(from).bytes() != graph.at(to).bytes()) continue;
    StorageRequest& storage = requests[static_cast<size_t>(root[static_cast<size_t>(from)])];
    StorageRequest& other = requests[static_cast<size_t>(to)];
    if (storage.last != static_cast<int64_t>(i)) continue;
    storage.last = other.last;
    other.bytes = 0;
    root[static_cast<size_t>(to)] = root[static_cast<size_t>(from)];
  }
}

}  // namespace

ScratchPlan plan_scratch(const LayerGraph& graph, std::span<const Op> list) {
  std::vector<StorageRequest> requests(graph.values.size());
  std::vector<ValueId> root(graph.values.size());
  std::iota(root.begin(), root.end(), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    const auto mark = [&](ValueId id) {
      if (id < 0 || !lives_in_scratch(graph.at(id))) return;
      StorageRequest& request = requests[static_cast<size_t>(id)];
      request.bytes = graph.at(id).bytes();
      touch(request, static_cast<int64_t>(i));
    };
    for (const ValueId id : list[i].in) mark(id);
    for (const ValueId id : list[i].out) mark(id);
    mark(list[i].workspace);
  }
  join_in_place(graph, list, requests, root);
  const StorageLayout layout = pack_storage(requests, kStorageAlignment);
  ScratchPlan plan;
  plan.bytes = layout.bytes;
  plan.offset.assign(graph.values.size(), -1);
  for (size_t i = 0; i < requests.size(); ++i)
    plan.offset[i] = layout.offset[static_cast<size_t>(root[i])];
  return plan;
}

ScratchPlan plan_saved(const LayerGraph& graph) {
  ScratchPlan plan;
  plan.offset.assign(graph.values.size(), -1);
  for (const ValueId id : graph.with_role(ValueRole::kSaved)) {
    plan.offset[static_cast<size_t>(id)] = plan.bytes;
    plan.bytes += (graph.at(id).bytes() + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
  }
  return plan;
}

}  // namespace ftrun
