#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/enum_names.h"

namespace ftrun {

/// recompute.policy: how much of what backward reads is made again instead of being kept from
/// forward. Each level keeps no more than the one before it.
enum class RecomputeLevel : uint8_t {
  kNone,       // only results of cheap kinds (norms, gated products) are made again
  kSelective,  // what frees most bytes within a budget of operations run again
  kFull,       // everything that can be: a block keeps its input alone
};
template <>
struct EnumNames<RecomputeLevel> {
  static constexpr std::array<std::string_view, 3> kNames{"none", "selective", "full"};
};

}  // namespace ftrun
