#pragma once

#include "graph/builder.h"
#include "graph/op_spec.h"
#include "model/description.h"
#include "ops/collective/collective.h"

namespace ftrun {

/// TensorCollectives emits the collectives of tensor-parallel ranks around the operations of a
/// layer that these ranks divide; on a single rank it emits nothing.
class TensorCollectives {
 public:
  TensorCollectives(GraphBuilder& g, const TensorSplit& split) : g_(g), split_(split) {}

  /// Gathers all tokens of a value that is split by tokens.
  ValueId gather_tokens(ValueId x) {
    return by_tokens() ? ops::all_gather(g_, x, along_tensor(split_.degree)) : x;
  }

  /// Completes result `x` of an operation that the ranks divide along `letter`: if each rank
  /// computed a term of it, sums the terms. The sum is split by tokens if hidden states are.
  ValueId reduce_partial(OpKind kind, char letter, ValueId x) {
    return by_tokens() && is_partial(kind, letter)
               ? ops::reduce_scatter(g_, x, along_tensor(split_.degree))
               : all_reduce_partial(kind, letter, x);
  }

  /// Completes `x` as reduce_partial() does, but gives each rank all tokens of the sum.
  ValueId all_reduce_partial(OpKind kind, char letter, ValueId x) {
    return is_partial(kind, letter) ? ops::all_reduce(g_, x, along_tensor(split_.degree)) : x;
  }

  /// Gathers the ranks' blocks of rows of a matrix.
  ValueId gather_blocks(ValueId x) {
    return split_.degree > 1 ? ops::all_gather_blocks(g_, x, along_tensor(split_.degree)) : x;
  }

 private:
  bool by_tokens() const { return split_.degree > 1 && split_.sequence; }
  bool is_partial(OpKind kind, char letter) const {
    return split_.degree > 1 && result_is_partial(kind, 0, letter);
  }

  GraphBuilder& g_;
  TensorSplit split_;
};

}  // namespace ftrun
