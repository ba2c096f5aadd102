#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/enum_names.h"

namespace ftrun {

/// UnitGranularity is partition.unit, the size of a unit: the attention or the MLP half of a block;
/// a layer (default); the whole model. A tied matrix always lies in one unit only (the embedding's,
/// unless `model`).
enum class UnitGranularity : uint8_t { kBlock, kLayer, kModel };
template <>
struct EnumNames<UnitGranularity> {
  static constexpr std::array<std::string_view, 3> kNames{"block", "layer", "model"};
};

}  // namespace ftrun
