#pragma once

#include "graph/builder.h"
#include "graph/op_spec.h"
#include "model/description.h"
#include "ops/collective/collective.h"

namespace ftrun {

/// TensorExchange emits what tensor-parallel ranks exchange around the operations of a layer that
/// they share out; on a single rank nothing.
class TensorExchange {
 public:
  TensorExchange(GraphBuilder& g, const TensorSplit& split) : g_(g), split_(split) {}

  /// Gathers all tokens of what is split by tokens.
  ValueId all_tokens(ValueId x) {
    return by_tokens() ? ops::all_gather(g_, x, along_tensor(split_.degree)) : x;
  }

  /// Completes result `x` of an operation that the ranks share out along `letter`: sums it where
  /// each made a term of it, by tokens where hidden states are split so.
  ValueId whole(OpKind kind, char letter, ValueId x) {
    return by_tokens() && is_term(kind, letter)
               ? ops::reduce_scatter(g_, x, along_tensor(split_.degree))
               : on_each_rank(kind, letter, x);
  }

  /// Does the same, and leaves all of the sum on each rank.
  ValueId on_each_rank(OpKind kind, char letter, ValueId x) {
    return is_term(kind, letter) ? ops::all_reduce(g_, x, along_tensor(split_.degree)) : x;
  }

  /// Joins the blocks of rows that the ranks have of a matrix.
  ValueId joined_blocks(ValueId x) {
    return split_.degree > 1 ? ops::all_gather_blocks(g_, x, along_tensor(split_.degree)) : x;
  }

 private:
  bool by_tokens() const { return split_.degree > 1 && split_.sequence; }
  bool is_term(OpKind kind, char letter) const {
    return split_.degree > 1 && result_is_term(kind, 0, letter);
  }

  GraphBuilder& g_;
  TensorSplit split_;
};

}  // namespace ftrun
