#pragma once

#include <string_view>

#include "graph/op.h"

namespace ftrun {

struct OpTraits {
  /// Run again in the backward list instead of saving what it produced.
  bool cheap = false;
  /// Communication among the tensor-parallel ranks.
  bool collective = false;
  /// Running it again would count the loss twice.
  bool once = false;
  /// The input whose storage output 0 may lie on; -1: none.
  int in_place = -1;
};

/// What is known of a kind without its operands' sizes: one entry a kind. Costs and workspaces,
/// which follow from sizes, are functions (cost.cc, workspace.cc).
struct OpSpec {
  OpKind kind;
  std::string_view name;
  /// Operands in the letters of op.h: dimensions of an operand are joined by commas, [optional]
  /// operands come last. Q stands for (H+2K)d, R for H+K, A for H*d, G for 2F, P for t*C. S is any
  /// shape, tS the blocks of t ranks of that shape.
  std::string_view shapes;
  OpTraits traits;
};

const OpSpec& op_spec(OpKind kind);

}  // namespace ftrun
