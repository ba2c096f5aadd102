#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <vector>

#include "axes/pipeline/schedule.h"
#include "base/error.h"
#include "graph/layer_graph.h"
#include "model/description.h"
#include "partition/units.h"
#include "program/program.h"

namespace ftrun {

/// ValueRanges holds the buffer range of each value of a graph. bind_ops() uses it to set the
/// operands of a layer's instructions. It is an array indexed by value, not a map: a step has
/// millions of values.
class ValueRanges {
 public:
  explicit ValueRanges(const LayerGraph& graph) : ranges_(graph.values.size()) {}

  void set(ValueId id, const BufferRange& range) { ranges_[static_cast<size_t>(id)] = range; }
  bool has(ValueId id) const { return ranges_[static_cast<size_t>(id)].buffer >= 0; }
  /// Returns the range of a value that has one.
  const BufferRange& at(ValueId id) const {
    require(has(id), "a value has storage");
    return ranges_[static_cast<size_t>(id)];
  }

 private:
  std::vector<BufferRange> ranges_;
};

/// Returns the kind of instruction that runs a phase of a layer.
InstrKind instr_kind_of(Phase phase);
/// Returns the operation list of the graph that instructions of a kind run, whole or in part.
const std::vector<Op>& op_list_of(const LayerGraph& graph, InstrKind kind);
/// Returns whether the instruction's operations lie within the bounds of its operation list.
bool has_valid_ops(const LayerGraph& graph, const Instr& instr);
/// Returns the operations that the instruction runs.
std::span<const Op> ops_of(const LayerGraph& graph, const Instr& instr);

/// OperandValues lists the values that operations read and write, each list in ascending order.
struct OperandValues {
  /// The values that are read before the operations write them.
  std::vector<ValueId> reads;
  std::vector<ValueId> writes;
  std::vector<ValueId> touched;
};
OperandValues list_operand_values(std::span<const Op> op_list);

/// Sets the bindings, reads and writes of `instr` to the ranges of the values that its operations
/// read and write (`operands`).
void bind_ops(Instr& instr, const LayerGraph& graph, const OperandValues& operands,
              const ValueRanges& value_ranges);

/// Returns, for each value of `graph`, whether the operations of `op_list` read it (or write it).
std::vector<char> find_values_read(const LayerGraph& graph, const std::vector<Op>& op_list);
std::vector<char> find_values_written(const LayerGraph& graph, const std::vector<Op>& op_list);

/// Collects the units whose parameters are read by `op_list`, an operation list of layer number
/// `layer`.
std::set<UnitId> find_units_read(const ModelDescription& model, const Partition& partition,
                                 size_t layer, const std::vector<Op>& op_list);

}  // namespace ftrun
