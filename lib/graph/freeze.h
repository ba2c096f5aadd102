#pragma once

#include <set>

#include "graph/layer_graph.h"

namespace ftrun {

/// Returns the graph of a layer some of whose parameters (values of role kParam) do not train. No
/// list makes their gradients: operations that made nothing else are gone, as is what was kept,
/// gathered or made again only for these. Where an operation makes such a gradient together with
/// what is wanted (the vocabulary's cross-entropy of tensor ranks), it is a temporary value that
/// nothing reads. `for_layer_before`: the layer before needs the gradient with respect to this
/// one's input; where it does not, that gradient is dropped likewise, and if nothing of this layer
/// trains either, no backward list has any operation.
LayerGraph without_gradients(LayerGraph graph, const std::set<ValueId>& frozen,
                             bool for_layer_before);

}  // namespace ftrun
