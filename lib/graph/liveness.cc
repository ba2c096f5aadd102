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
    if (!may_run_in_place(op.kind)) continue;
    const ValueId from = op.in[0];
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

StorageLayout pack_storage(std::span<const StorageRequest> requests, int64_t alignment) {
  StorageLayout layout;
  layout.offset.assign(requests.size(), -1);
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Largest first, then earliest, is the usual good greedy for interval packing.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return requests[a].bytes != requests[b].bytes ? requests[a].bytes > requests[b].bytes
                                                  : requests[a].first < requests[b].first;
  });
  std::vector<size_t> placed;
  for (const size_t at : order) {
    const StorageRequest& request = requests[at];
    if (request.bytes == 0 || request.first > request.last) continue;
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const size_t other : placed)
      if (requests[other].first <= request.last && request.first <= requests[other].last)
        taken.emplace_back(layout.offset[other], layout.offset[other] + requests[other].bytes);
    std::sort(taken.begin(), taken.end());
    int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (offset + request.bytes <= begin) break;
      offset = std::max(offset, (end + alignment - 1) / alignment * alignment);
    }
    layout.offset[at] = offset;
    layout.bytes = std::max(layout.bytes, offset + request.bytes);
    placed.push_back(at);
  }
  layout.bytes = (layout.bytes + alignment - 1) / alignment * alignment;
  return layout;
}

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
