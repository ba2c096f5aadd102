#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ftrun {

/// SequentialIds assigns ids to keys: 0, 1, ... in the order in which the keys are first seen.
/// `Map` maps keys to int32_t.
template <typename Map>
class SequentialIds {
 public:
  int32_t id_of(typename Map::key_type key) {
    return ids_.try_emplace(std::move(key), static_cast<int32_t>(ids_.size())).first->second;
  }
  size_t count() const { return ids_.size(); }

 private:
  Map ids_;
};

}  // namespace ftrun
