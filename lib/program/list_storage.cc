#include "program/list_storage.h"

#include <set>
#include <span>

#include "base/collective_kind.h"
#include "graph/op_spec.h"
#include "graph/scratch.h"

namespace ftrun {
namespace {

std::vector<OpListPart> split_list(const std::vector<Op>& op_list) {
  std::vector<OpListPart> parts;
  size_t first = 0;
  const auto add_ops = [&](size_t end) {
    if (first < end)
      parts.push_back(
          {first, end, false, list_operand_values(std::span(op_list).subspan(first, end - first))});
    first = end;
  };
  std::set<ValueId> in_progress;
  for (size_t i = 0; i < op_list.size(); ++i) {
    const Op& op = op_list[i];
    if (is_collective(op.kind)) {
      add_ops(i);
      parts.push_back({i, i + 1, true});
      in_progress.insert(op.out[0]);
      first = i + 1;
      continue;
    }
    size_t arrived = 0;
    for (const ValueId id : op.in) arrived += in_progress.erase(id);
    if (arrived > 0) add_ops(i);
  }
  add_ops(op_list.size());
  return parts;
}

}  // namespace

BufferPlan::BufferPlan(const LayerGraph& graph, const ScratchPlan& plan) : bytes(plan.bytes) {
  for (size_t v = 0; v < plan.offset.size(); ++v)
    if (plan.offset[v] >= 0)
      values.emplace_back(static_cast<ValueId>(v),
                          BufferRange{-1, plan.offset[v], graph.values[v].bytes()});
}

OpListInfo::OpListInfo(const LayerGraph& graph, const std::vector<Op>& ops)
    : op_list(ops),
      reads(find_values_read(graph, op_list)),
      writes(find_values_written(graph, op_list)),
      parts(split_list(op_list)),
      scratch(graph, plan_scratch(graph, op_list)) {}

GraphStorage::GraphStorage(const LayerGraph& graph, bool separate_weight_grads)
    : saved(graph, plan_saved(graph, separate_weight_grads ? SavedValueReader::kWeightGrad
                                                           : SavedValueReader::kBackward)),
      saved_for_input_grad(graph, separate_weight_grads
                                      ? plan_saved(graph, SavedValueReader::kInputGrad)
                                      : ScratchPlan()),
      deferred(graph, plan_deferred(graph)),
      graph_(&graph) {}

const OpListInfo& GraphStorage::info(InstrKind kind) {
  const auto known = infos_.find(kind);
  if (known != infos_.end()) return known->second;
  return infos_.try_emplace(kind, *graph_, op_list_of(*graph_, kind)).first->second;
}

void sum_in_place(const LayerGraph& graph, const std::vector<Op>& op_list, ValueRanges& ranges) {
  for (const Op& op : op_list) {
    if (op_spec(op.kind).collective != CollectiveKind::kAllReduce) continue;
    const BufferRange out = ranges.at(op.out[0]);
    const bool moves =
        graph.at(op.in[0]).role == ValueRole::kTemp && ranges.at(op.in[0]).buffer != out.buffer;
    if (moves) ranges.set(op.in[0], out);
  }
}

}  // namespace ftrun
