#pragma once

#include <span>

#include "graph/op.h"
#include "machine/machine.h"

namespace ftrun {

struct LayerGraph;

/// Names an operation's kind as machine files do: "linear bf16".
std::string slowdown_key(const LayerGraph& graph, const Op& op);

/// Computes the seconds of an operation's passes (graph/cost.h) at the rates without slowdowns: a
/// pass takes as long as its arithmetic or its bytes, whichever is longer. Throws Error(kUsage)
/// where the machine has no rate for the dtype.
double ideal_seconds(const Rates& rates, const LayerGraph& graph, const Op& op);

/// Computes the seconds of operations that run one after another.
double list_seconds(const Machine& machine, const Rates& rates, const LayerGraph& graph,
                    std::span<const Op> list);

}  // namespace ftrun
