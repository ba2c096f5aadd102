#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/layer_graph.h"
#include "model/description.h"
#include "partition/units.h"
#include "program/program.h"

namespace ftrun {

/// Storage of a graph's values, by value: what the instruction of a list touches is bound from it.
using ValuePlaces = std::map<ValueId, Range>;

/// Puts the values that `plan` places into `buffer` into `places`.
void place_planned(const LayerGraph& graph, const ScratchPlan& plan, BufferId buffer,
                   ValuePlaces& places);

/// Fills bindings, reads and writes of `instr` with what `list` touches, from `places`.
void bind_list(Instr& instr, const LayerGraph& graph, const std::vector<Op>& list,
               const ValuePlaces& places);

/// Values that the operations of `list` read.
std::set<ValueId> values_read(const std::vector<Op>& list);

/// Units whose parameters `list`, one of layer number `layer`, reads.
std::set<UnitId> units_read(const ModelDescription& model, const Partition& partition, size_t layer,
                            const std::vector<Op>& list);

}  // namespace ftrun
