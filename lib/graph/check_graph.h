#pragma once

namespace ftrun {

struct LayerGraph;

/// Throws Error(kBug) unless every operation's operands are defined before use, its shapes agree
/// with its kind, and nothing is written twice, except by operations that also read it and change
/// it in place (a list overwrites or adds as a whole: of two operations that write one parameter's
/// gradient, the first would be lost). Backward is checked both ways: interleaved, and as input
/// gradients followed by weight gradients, between which no kTemp lives.
void check_graph(const LayerGraph& graph);

}  // namespace ftrun
