#pragma once

#include <vector>

#include "graph/op.h"
#include "ops/heads.h"

namespace ftrun {

class GraphBuilder;

// rope_table
//   One table holds the angles of several rotations, one after the other.
//   in:  positions I32[N]
//   out: rope F32[N,E]: cos of the E/2 angles, then sin, each times the angle's magnitude
// rope
//   Rotates the first 2 A of a head's d elements in q and k, where A is the number of angles that
//   the operation uses: elements i and i+A by angle i (as Hugging Face's rotate_half) or, with
//   attrs.pairs, neighbors 2i and 2i+1. Other elements, and v, are copied.
//   in:  qkv[N,(H+2K)d], rope F32[N,E]
//   out: y[N,(H+2K)d] (out may be in)
// rope_dgrad
//   in:  dy[N,(H+2K)d], rope F32[N,E]
//   out: dqkv[N,(H+2K)d] (out may be dy)

/// RopeAngle holds an angle per position in radians per token, scaled as the model requires, and
/// the factor of its cos and sin.
struct RopeAngle {
  double frequency = 0;
  double magnitude = 1.0;
  bool operator==(const RopeAngle&) const = default;
};

/// RopeTableAttrs holds the attributes of rope_table.
struct RopeTableAttrs {
  /// The E/2 angles.
  std::vector<RopeAngle> angles;
  bool operator==(const RopeTableAttrs&) const = default;
};

/// RopeAttrs holds the attributes of rope and of its gradient.
struct RopeAttrs {
  HeadAttrs heads;
  /// The first angle of the table that the operation uses, and how many it uses; 0: all.
  int64_t first_angle = 0;
  int64_t angles = 0;
  bool pairs = false;
  bool operator==(const RopeAttrs&) const = default;

  /// Returns A for a table of this width.
  int64_t angles_of(int64_t table_width) const { return angles > 0 ? angles : table_width / 2; }
};

namespace ops {
ValueId rope_table(GraphBuilder& g, ValueId positions, RopeTableAttrs attrs);
/// Rotates the heads of `qkv` by `table`, whose width is even. The table must contain the angles
/// that attrs name, at most half a head's elements.
ValueId rope(GraphBuilder& g, ValueId qkv, ValueId table, const RopeAttrs& attrs);
}  // namespace ops

}  // namespace ftrun
