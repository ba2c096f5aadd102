#pragma once

#include <cstdint>

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// Communication among the t ranks of a tensor-parallel group (TensorGroupAttrs::ranks).
//
// tensor_all_reduce
//   in:  x
//   out: sum of x over the ranks, same shape (out may be x)
// tensor_all_gather
//   in:  x[R,...]
//   out: y[tR,...] or [t,R,...], the ranks' blocks in their order
// tensor_reduce_scatter
//   in:  x[tR,...]
//   out: y[R,...], this rank's block of the sum over the ranks

/// Attributes of the collectives: the tensor-parallel group.
struct TensorGroupAttrs {
  int64_t ranks = 1;
  bool operator==(const TensorGroupAttrs&) const = default;
};

namespace ops {
ValueId all_reduce(GraphBuilder& g, ValueId x, int64_t ranks);
ValueId all_gather(GraphBuilder& g, ValueId x, int64_t ranks);
/// The ranks' blocks of x[R,...] apart: [ranks,R,...].
ValueId all_gather_blocks(GraphBuilder& g, ValueId x, int64_t ranks);
ValueId reduce_scatter(GraphBuilder& g, ValueId x, int64_t ranks);
}  // namespace ops

}  // namespace ftrun
