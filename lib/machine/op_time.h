#pragma once

#include <span>

#include "graph/op.h"
#include "machine/machine.h"

namespace ftrun {

struct LayerGraph;

/// The name of an operation's kind in machine files: "linear bf16".
std::string rated_kind(const LayerGraph& graph, const Op& op);

/// Seconds of an operation's passes (graph/cost.h) at the rates alone: each takes as long as its
/// arithmetic or its bytes do, whichever is longer. Error(kUsage) where the machine has no rate for
/// the dtype.
double ideal_seconds(const Rates& rates, const LayerGraph& graph, const Op& op);

/// Seconds of operations that run one after another.
double list_seconds(const Machine& machine, const Rates& rates, const LayerGraph& graph,
                    std::span<const Op> list);

}  // namespace ftrun
