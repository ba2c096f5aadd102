#include "program/layer_instr.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace ftrun {
namespace {

/// ListValues holds the values that an operation list uses.
struct ListValues {
  std::set<ValueId> reads;  // before the list writes them
  std::set<ValueId> writes;
};

ListValues values_of(std::span<const Op> list) {
  ListValues used;
  for (const Op& op : list) {
    for (const ValueId id : op.in)
      if (!used.writes.contains(id)) used.reads.insert(id);
    used.writes.insert(op.out.begin(), op.out.end());
    if (op.workspace >= 0) used.writes.insert(op.workspace);
  }
  return used;
}

}  // namespace

void place_planned(const LayerGraph& graph, const ScratchPlan& plan, BufferId buffer,
                   ValuePlaces& places) {
  for (size_t v = 0; v < plan.offset.size(); ++v)
    if (plan.offset[v] >= 0)
      places[static_cast<ValueId>(v)] = {buffer, plan.offset[v], graph.values[v].bytes()};
}

InstrKind kind_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return InstrKind::kForward;
    case Phase::kBackward:
      return InstrKind::kBackward;
    case Phase::kInputGrad:
      return InstrKind::kInputGrad;
    case Phase::kWeightGrad:
      return InstrKind::kWeightGrad;
  }
  bug("a phase of a schedule");
}

const std::vector<Op>& list_of(const LayerGraph& graph, InstrKind kind) {
  switch (kind) {
    case InstrKind::kForward:
      return graph.forward;
    case InstrKind::kBackward:
      return graph.backward;
    case InstrKind::kInputGrad:
      return graph.input_grad;
    case InstrKind::kWeightGrad:
      return graph.weight_grad;
    default:
      bug(cat(instr_name(kind), " runs no list"));
  }
}

bool has_ops(const LayerGraph& graph, const Instr& instr) {
  const auto size = static_cast<int32_t>(list_of(graph, instr.kind).size());
  const LayerOps& ops = instr.ops();
  return ops.first_op >= 0 && ops.op_count >= 0 && ops.op_count <= size - ops.first_op;
}

std::span<const Op> ops_of(const LayerGraph& graph, const Instr& instr) {
  require(has_ops(graph, instr), "the operations belong to the instruction's list");
  const std::vector<Op>& list = list_of(graph, instr.kind);
  return std::span(list).subspan(static_cast<size_t>(instr.ops().first_op),
                                 static_cast<size_t>(instr.ops().op_count));
}

void bind_ops(Instr& instr, const LayerGraph& graph, const ValuePlaces& places) {
  const ListValues used = values_of(ops_of(graph, instr));
  const auto place = [&](ValueId id) {
    const auto found = places.find(id);
    if (found == places.end())
      bug(cat(graph.name, ": ", graph.at(id).name, " has no place in ", instr_label(instr)));
    return found->second;
  };
  std::set<ValueId> all = used.reads;
  all.insert(used.writes.begin(), used.writes.end());
  for (const ValueId id : all) instr.ops().bindings.push_back({id, place(id)});
  for (const ValueId id : used.reads) add_range(instr.reads, place(id));
  for (const ValueId id : used.writes) add_range(instr.writes, place(id));
  if (!instr.ops().accumulate) return;
  for (const ValueId id : used.writes)
    if (graph.at(id).role == ValueRole::kParamGrad) add_range(instr.reads, place(id));
}

std::set<ValueId> values_read(const std::vector<Op>& list) {
  std::set<ValueId> read;
  for (const Op& op : list) read.insert(op.in.begin(), op.in.end());
  return read;
}

std::set<ValueId> values_written(const std::vector<Op>& list) {
  std::set<ValueId> written;
  for (const Op& op : list) written.insert(op.out.begin(), op.out.end());
  return written;
}

std::set<UnitId> units_read(const ModelDescription& model, const Partition& partition, size_t layer,
                            const std::vector<Op>& list) {
  const std::set<ValueId> read = values_read(list);
  const std::vector<GraphParam>& params = model.layers[layer].params;
  std::set<UnitId> units;
  for (size_t i = 0; i < params.size(); ++i)
    if (read.contains(params[i].value)) units.insert(partition.param_locations[layer][i].unit);
  return units;
}

}  // namespace ftrun
