#pragma once

#include <cstdint>

#include "graph/collective_attrs.h"
#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// Communication among t ranks: those along an axis of the mesh (CollectiveAttrs).
//
// all_reduce
//   in:  x
//   out: sum of x over the ranks, same shape (out may be x)
// all_gather
//   in:  x[R,...]
//   out: y[tR,...] or [t,R,...], the ranks' blocks in their order
// reduce_scatter
//   in:  x[tR,...]
//   out: y[R,...], this rank's block of the sum over the ranks
// all_to_all
//   in:  x[tR,...]
//   out: y[tR,...], every rank's block for this rank, in the order of the ranks
// shift
//   in:  x
//   out: x of the rank that is `by` places before this one (before the first rank comes the last
//        one), same shape

namespace ops {
ValueId all_reduce(GraphBuilder& g, ValueId x, const CollectiveAttrs& over);
ValueId all_gather(GraphBuilder& g, ValueId x, const CollectiveAttrs& over);
/// Gathers the ranks' blocks of x[R,...] and keeps them apart: [ranks,R,...].
ValueId all_gather_blocks(GraphBuilder& g, ValueId x, const CollectiveAttrs& over);
ValueId reduce_scatter(GraphBuilder& g, ValueId x, const CollectiveAttrs& over);
ValueId all_to_all(GraphBuilder& g, ValueId x, const CollectiveAttrs& over);
ValueId shift(GraphBuilder& g, ValueId x, const CollectiveAttrs& over);
}  // namespace ops

}  // namespace ftrun
