#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "axes/pipeline/schedule.h"
#include "graph/layer_graph.h"
#include "graph/scratch.h"
#include "model/description.h"
#include "partition/units.h"
#include "program/program.h"

namespace ftrun {

/// ValuePlaces maps the values of a graph to their storage. bind_ops() uses it to set the operands
/// of a layer's instructions.
using ValuePlaces = std::map<ValueId, Range>;

/// Adds to `places` the values that `plan` places into `buffer`.
void place_planned(const LayerGraph& graph, const ScratchPlan& plan, BufferId buffer,
                   ValuePlaces& places);

/// Returns the kind of instruction that runs a phase of a layer.
InstrKind kind_of(Phase phase);
/// Returns the operation list of the graph that instructions of a kind run, whole or in part.
const std::vector<Op>& list_of(const LayerGraph& graph, InstrKind kind);
/// Returns whether the instruction's operations lie within the bounds of its operation list.
bool has_ops(const LayerGraph& graph, const Instr& instr);
/// Returns the operations that the instruction runs.
std::span<const Op> ops_of(const LayerGraph& graph, const Instr& instr);

/// Sets the bindings, reads and writes of `instr` to the storage that its operations touch, found
/// in `places`.
void bind_ops(Instr& instr, const LayerGraph& graph, const ValuePlaces& places);

/// Collects the values that the operations of `list` read, or write.
std::set<ValueId> values_read(const std::vector<Op>& list);
std::set<ValueId> values_written(const std::vector<Op>& list);

/// Collects the units whose parameters are read by `list`, an operation list of layer number
/// `layer`.
std::set<UnitId> units_read(const ModelDescription& model, const Partition& partition, size_t layer,
                            const std::vector<Op>& list);

}  // namespace ftrun
