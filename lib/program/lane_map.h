#pragma once

#include <utility>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// LaneMap holds a value for each lane that was asked for. It searches a list, because most things
/// have to do with one or two lanes.
template <typename T>
class LaneMap {
 public:
  /// Returns the value of a lane; adds a default one if there is none.
  T& operator[](Lane lane) {
    for (auto& [known, value] : values_)
      if (known == lane) return value;
    return values_.emplace_back(lane, T()).second;
  }

  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  std::vector<std::pair<Lane, T>> values_;
};

}  // namespace ftrun
