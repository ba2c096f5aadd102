#include "program/layer_instr.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace ftrun {

InstrKind instr_kind_of(Phase phase) {
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

const std::vector<Op>& op_list_of(const LayerGraph& graph, InstrKind kind) {
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

bool has_valid_ops(const LayerGraph& graph, const Instr& instr) {
  const auto size = static_cast<int32_t>(op_list_of(graph, instr.kind).size());
  const LayerOps& ops = instr.ops();
  return ops.first_op >= 0 && ops.op_count >= 0 && ops.op_count <= size - ops.first_op;
}

std::span<const Op> ops_of(const LayerGraph& graph, const Instr& instr) {
  require(has_valid_ops(graph, instr), "the operations belong to the instruction's list");
  const std::vector<Op>& op_list = op_list_of(graph, instr.kind);
  return std::span(op_list).subspan(static_cast<size_t>(instr.ops().first_op),
                                    static_cast<size_t>(instr.ops().op_count));
}

OperandValues list_operand_values(std::span<const Op> op_list) {
  std::set<ValueId> reads, writes;
  for (const Op& op : op_list) {
    for (const ValueId id : op.in)
      if (!writes.contains(id)) reads.insert(id);
    writes.insert(op.out.begin(), op.out.end());
    if (op.workspace >= 0) writes.insert(op.workspace);
  }
  std::set<ValueId> all = reads;
  all.insert(writes.begin(), writes.end());
  return {{reads.begin(), reads.end()}, {writes.begin(), writes.end()}, {all.begin(), all.end()}};
}

void bind_ops(Instr& instr, const LayerGraph& graph, const OperandValues& operands,
              const ValueRanges& value_ranges) {
  LayerOps& ops = instr.ops();
  ops.bindings.reserve(operands.touched.size());
  for (const ValueId id : operands.touched) {
    if (!value_ranges.has(id))
      bug(cat(graph.name, ": ", graph.at(id).name, " has no storage in ", instr_label(instr)));
    ops.bindings.push_back({id, value_ranges.at(id)});
  }
  // One allocation of the exact size for each list: lists that grow are allocated several times
  // and keep unused capacity.
  std::vector<BufferRange> ranges;
  ranges.reserve(operands.reads.size() + operands.writes.size());
  for (const ValueId id : operands.writes) add_range(ranges, value_ranges.at(id));
  instr.writes.assign(ranges.begin(), ranges.end());
  ranges.clear();
  for (const ValueId id : operands.reads) add_range(ranges, value_ranges.at(id));
  if (ops.accumulate)
    for (const ValueId id : operands.writes)
      if (graph.at(id).role == ValueRole::kParamGrad) add_range(ranges, value_ranges.at(id));
  instr.reads.assign(ranges.begin(), ranges.end());
}

std::vector<char> find_values_read(const LayerGraph& graph, const std::vector<Op>& op_list) {
  std::vector<char> read(graph.values.size(), 0);
  for (const Op& op : op_list)
    for (const ValueId id : op.in) read[static_cast<size_t>(id)] = 1;
  return read;
}

std::vector<char> find_values_written(const LayerGraph& graph, const std::vector<Op>& op_list) {
  std::vector<char> written(graph.values.size(), 0);
  for (const Op& op : op_list)
    for (const ValueId id : op.out) written[static_cast<size_t>(id)] = 1;
  return written;
}

std::set<UnitId> find_units_read(const ModelDescription& model, const Partition& partition,
                                 size_t layer, const std::vector<Op>& op_list) {
  const std::vector<char> read = find_values_read(model.graph_of(model.layers[layer]), op_list);
  const std::vector<GraphParam>& params = model.layers[layer].params;
  std::set<UnitId> units;
  for (size_t i = 0; i < params.size(); ++i)
    if (read[static_cast<size_t>(params[i].value)] != 0)
      units.insert(partition.param_locations[layer][i].unit);
  return units;
}

}  // namespace ftrun
