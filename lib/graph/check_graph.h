#pragma once

namespace ftrun {

struct LayerGraph;

/// Throws Error(kBug) unless every operation's operands are defined before use, its shapes agree
/// with its kind, and no value is written twice. Only operations that read a value may change it in
/// place. (A list either overwrites or adds: if two operations wrote one parameter's gradient, the
/// first result would be lost.) Backward is checked in both forms: interleaved, and as input
/// gradients followed by weight gradients, between which no kTemp lives.
void check_graph(const LayerGraph& graph);

}  // namespace ftrun
