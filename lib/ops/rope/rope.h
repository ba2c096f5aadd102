#pragma once

#include <vector>

#include "graph/op.h"
#include "ops/heads.h"

namespace ftrun {

class GraphBuilder;

// rope_table
//   in:  positions I32[N]
//   out: rope F32[N,E]: cos of the E/2 angles, then sin
// rope
//   Rotates the first E of a head's d elements in q and k (halves i and i+E/2, as Hugging Face's
//   rotate_half); the others, and v, are copied.
//   in:  qkv[N,(H+2K)d], rope F32[N,E]
//   out: y[N,(H+2K)d] (out may be in)
// rope_dgrad
//   in:  dy[N,(H+2K)d], rope F32[N,E]
//   out: dqkv[N,(H+2K)d] (out may be dy)

struct RopeTableAttrs {
  /// E/2 angles per position (radians per token), already scaled as the family asks.
  std::vector<double> inverse_frequencies;
  /// Multiplies cos and sin (1 except for YaRN-like scalings).
  double magnitude = 1.0;
  bool operator==(const RopeTableAttrs&) const = default;
};

namespace ops {
ValueId rope_table(GraphBuilder& g, ValueId positions, std::vector<double> inverse_frequencies,
                   double magnitude);
/// The table's width is E, even and at most the head's size.
ValueId rope(GraphBuilder& g, ValueId qkv, ValueId table, const HeadAttrs& heads);
}  // namespace ops

}  // namespace ftrun
