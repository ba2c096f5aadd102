#pragma once

#include <set>

#include "graph/layer_graph.h"

namespace ftrun {

/// Returns the graph of a layer in which the `frozen` parameters (values of role kParam) do not
/// train. No list computes their gradients: operations that computed nothing else are removed, and
/// so are values that were kept, gathered or recomputed only for these operations. If an operation
/// computes such a gradient together with others that are needed (the vocabulary's cross-entropy of
/// tensor ranks), the gradient becomes a temporary value that nothing reads.
/// `needs_input_gradient`: the previous layer needs the gradient with respect to this layer's
/// input. If it does not, that gradient is also removed, and if no parameter of this layer trains
/// either, the backward lists are empty.
LayerGraph remove_frozen_gradients(LayerGraph graph, const std::set<ValueId>& frozen,
                                   bool needs_input_gradient);

}  // namespace ftrun
