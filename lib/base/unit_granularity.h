#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace ftrun {

/// UnitGranularity is partition.unit, the size of a unit: the attention half or the MLP half of a
/// block; a layer (default); the whole model. A tied matrix always lies in only one unit (the
/// embedding's, unless `model`).
enum class UnitGranularity : uint8_t { kBlock, kLayer, kModel };
template <>
struct EnumNames<UnitGranularity> {
  static constexpr auto kNames = enum_names<UnitGranularity>({"block", "layer", "model"});
};

}  // namespace ftrun
