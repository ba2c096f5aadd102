#pragma once

#include <string>

namespace ftrun {

struct LayerGraph;
struct Op;

/// Returns what is wrong with the shapes of an operation's operands ("needs N,O O,I -> N,I: w is no
/// O,I"); "" when they agree with its kind.
std::string shape_fault(const LayerGraph& graph, const Op& op);

}  // namespace ftrun
