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

/// ValuePlaces maps the values of a graph to their storage, from which the instructions of a list
/// are bound.
using ValuePlaces = std::map<ValueId, Range>;

/// Adds to `places` the values that `plan` places into `buffer`.
void place_planned(const LayerGraph& graph, const ScratchPlan& plan, BufferId buffer,
                   ValuePlaces& places);

/// Returns the kind of instruction that runs a phase of a layer.
InstrKind kind_of(Phase phase);
/// Returns the list of operations from which instructions of a kind run a part.
const std::vector<Op>& list_of(const LayerGraph& graph, InstrKind kind);
/// Returns whether the graph contains the operations of the instruction.
bool has_ops(const LayerGraph& graph, const Instr& instr);
/// Returns the operations that the instruction runs.
std::span<const Op> ops_of(const LayerGraph& graph, const Instr& instr);

/// Fills bindings, reads and writes of `instr` with what its operations touch, from `places`.
void bind_ops(Instr& instr, const LayerGraph& graph, const ValuePlaces& places);

/// Collects the values that the operations of `list` read, or write.
std::set<ValueId> values_read(const std::vector<Op>& list);
std::set<ValueId> values_written(const std::vector<Op>& list);

/// Collects the units whose parameters `list`, one of layer number `layer`, reads.
std::set<UnitId> units_read(const ModelDescription& model, const Partition& partition, size_t layer,
                            const std::vector<Op>& list);

}  // namespace ftrun
