#pragma once

namespace ftrun {

struct LayerGraph;

/// Throws Error(kBug) unless every operation's operands are defined before use, shapes agree with
/// its kind, and nothing is written twice (a list overwrites or adds as a whole: two operations
/// that write one parameter's gradient would lose the first), but by operations that read it as
/// well: they change what is there. Backward is looked at both ways: interleaved, and as input
/// gradients followed by weight gradients, between which no kTemp lives.
void check_graph(const LayerGraph& graph);

}  // namespace ftrun
