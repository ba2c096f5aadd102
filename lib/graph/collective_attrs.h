#pragma once

#include <cstdint>

#include "axes/mesh_axis.h"

namespace ftrun {

/// CollectiveAttrs names the ranks over which a graph's collective runs.
struct CollectiveAttrs {
  MeshAxis axis = MeshAxis::kTensor;
  /// The number of ranks along the axis.
  int64_t ranks = 1;
  /// The number of ranks by which a shift moves data, from 1 to ranks - 1.
  int64_t shift = 0;
  bool operator==(const CollectiveAttrs&) const = default;
};
constexpr CollectiveAttrs along_tensor(int64_t ranks) {
  return {MeshAxis::kTensor, ranks};
}

}  // namespace ftrun
