#include "graph/op.h"

#include "graph/op_spec.h"

namespace ftrun {

std::string_view op_name(OpKind kind) {
  return op_spec(kind).name;
}

bool is_cheap(OpKind kind) {
  return op_spec(kind).cheap_result >= 0;
}

bool is_collective(OpKind kind) {
  return op_spec(kind).collective.has_value();
}

ValueId in_place_input(const Op& op) {
  const int operand = op_spec(op.kind).in_place_input;
  return operand < 0 || static_cast<size_t>(operand) >= op.in.size()
             ? -1
             : op.in[static_cast<size_t>(operand)];
}

}  // namespace ftrun
