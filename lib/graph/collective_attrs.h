#pragma once

#include <cstdint>

#include "axes/mesh_axis.h"

namespace ftrun {

/// CollectiveAttrs says over which ranks a graph's collective runs.
struct CollectiveAttrs {
  MeshAxis axis = MeshAxis::kTensor;
  /// Ranks along the axis.
  int64_t ranks = 1;
  /// Places by which a shift moves, from 1 to ranks - 1.
  int64_t by = 0;
  bool operator==(const CollectiveAttrs&) const = default;
};
constexpr CollectiveAttrs along_tensor(int64_t ranks) {
  return {MeshAxis::kTensor, ranks};
}

}  // namespace ftrun
