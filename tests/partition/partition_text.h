#pragma once

#include <string>

#include "base/error.h"
#include "base/text.h"
#include "partition/units.h"

namespace ftrun::testing {

/// Formats a partition, one line per unit: "unit 1 layers.0: 3540672 elements (3540096 in 9
/// tensors), layers 1".
inline std::string partition_text(const Partition& partition) {
  std::string text;
  for (const Unit& unit : partition.units)
    text +=
        cat("unit ", unit.id, " ", unit.name, ": ", unit.padded_numel, " elements (", unit.numel,
            " in ", unit.slices.size(), unit.slices.size() == 1 ? " tensor" : " tensors",
            "), layers ", join_numbers(unit.layers, ","), "\n");
  return text;
}

}  // namespace ftrun::testing
