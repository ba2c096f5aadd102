#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace ftrun {

/// RecomputeLevel is recompute.policy: how many of the values that backward reads are recomputed
/// instead of kept from forward. Each level keeps no more than the one before it.
enum class RecomputeLevel : uint8_t {
  kNone,       // only results of cheap kinds (norms, gated products) are recomputed
  kSelective,  // those that free most bytes within a budget of recomputed operations
  kFull,       // all that can be recomputed: a block keeps only its input
};
template <>
struct EnumNames<RecomputeLevel> {
  static constexpr auto kNames = enum_names<RecomputeLevel>({"none", "selective", "full"});
};

}  // namespace ftrun
