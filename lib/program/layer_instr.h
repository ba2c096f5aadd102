#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/layer_graph.h"
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

}  // namespace ftrun
