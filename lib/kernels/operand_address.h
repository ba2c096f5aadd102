#pragma once

#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/layer_graph.h"
#include "graph/op.h"

namespace ftrun {

/// Returns the memory of an operand, which has `dtype`. CPU kernels and GPU kernels find their
/// operands with it.
inline void* operand_address(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
                             ValueId id, DType dtype) {
  require(id >= 0 && static_cast<size_t>(id) < storage.size(),
          "the operand has an address in storage");
  const Value& value = graph.at(id);
  if (value.stored_dtype() != dtype)
    bug(cat(op_name(op.kind), ": ", value.name, " is ", dtype_name(value.stored_dtype()),
            ", the kernel wants ", dtype_name(dtype)));
  void* const address = storage[static_cast<size_t>(id)];
  if (address == nullptr) bug(cat(op_name(op.kind), ": ", value.name, " has no storage"));
  return address;
}

}  // namespace ftrun
