#pragma once

#include <cstdint>

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// dropout
//   Inverted dropout (Srivastava et al. 2014): an element becomes 0 with the probability p of
//   DropoutAttrs, and is divided by 1 - p otherwise. The mask is a function of the element's
//   position in training (kernels/dropout_mask.h), so the operation is its own gradient.
//   in:  x[N,I]
//   out: y[N,I] (out may be x)

/// DropoutAttrs holds the attributes of dropout.
struct DropoutAttrs {
  /// The probability that an element becomes 0; below 1.
  double probability = 0;
  /// The index of the dropout in its layer: each dropout of a layer has its own mask.
  int64_t site = 0;
  /// The index of this rank's column 0 among the columns of all tensor-parallel ranks.
  int64_t first_column = 0;
  /// Says whether the result is x - y, the part that dropout removes.
  bool returns_dropped_part = false;
  /// The number of ranks (LinearAttrs::gradient_ranks), if no linear layer reads x itself.
  int64_t gradient_ranks = 1;
  /// The shape of sequences: `sequence_length` tokens, of which the last `sequence_padding` are not
  /// counted among the tokens of the batch.
  int64_t sequence_length = 1;
  int64_t sequence_padding = 0;
  bool operator==(const DropoutAttrs&) const = default;
};

namespace ops {
ValueId dropout(GraphBuilder& g, ValueId x, const DropoutAttrs& attrs);
}  // namespace ops

}  // namespace ftrun
