#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace ftrun {

/// EnumNames holds the names of an enumeration's values, in the order of their numbers, as a config
/// writes them.
template <typename E>
struct EnumNames;

template <typename E>
std::string_view name_of(E value) {
  return EnumNames<E>::kNames[static_cast<size_t>(value)];
}

}  // namespace ftrun
