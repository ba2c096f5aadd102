#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ftrun {

/// Numbering assigns numbers to keys: 0, 1, ... in the order in which the keys are first seen.
/// `Map` maps keys to int32_t.
template <typename Map>
class Numbering {
 public:
  int32_t number_of(typename Map::key_type key) {
    return numbers_.try_emplace(std::move(key), static_cast<int32_t>(numbers_.size()))
        .first->second;
  }
  size_t count() const { return numbers_.size(); }

 private:
  Map numbers_;
};

}  // namespace ftrun
