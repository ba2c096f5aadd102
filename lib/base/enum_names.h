#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace ftrun {

/// EnumNames holds the names of an enumeration's values, in the order of their numbers, as a config
/// writes them. `kNames` is made by enum_names().
template <typename E>
struct EnumNames;

/// Returns whether a number is one of an enumeration's values. In __PRETTY_FUNCTION__, compilers
/// write such a number by the value's name, and any other number as a cast, "(E)7".
template <auto value>
consteval bool is_enumerator() {
  const std::string_view function = __PRETTY_FUNCTION__;
  return function.find("value = (") == std::string_view::npos;
}

/// Returns whether an enumeration has exactly the values 0 to count-1. nvcc writes the names of
/// functions in another way, so there any count is accepted: the host's compiler checks the same
/// headers.
template <typename E, size_t count>
consteval bool has_values() {
#ifdef __CUDACC__
  return true;
#else
  return is_enumerator<static_cast<E>(count - 1)>() && !is_enumerator<static_cast<E>(count)>();
#endif
}

/// Makes the names of an enumeration. Does not compile unless there is one name for each value.
template <typename E, size_t count>
consteval std::array<std::string_view, count> enum_names(const std::string_view (&names)[count]) {
  static_assert(has_values<E, count>(), "an enumeration has as many names as values");
  return std::to_array(names);
}

/// Makes the names of an enumeration whose values have a row each in a table of traits. `key` is
/// the row's field that holds the value; the name is its field `name`. Does not compile unless the
/// table has as many rows as the enumeration has values.
template <auto key, typename Traits, size_t count>
consteval std::array<std::string_view, count> names_of_rows(const Traits (&table)[count]) {
  static_assert(has_values<std::decay_t<decltype(Traits{}.*key)>, count>(),
                "an enumeration has as many rows as values");
  std::array<std::string_view, count> names;
  for (const Traits& row : table) names[static_cast<size_t>(row.*key)] = row.name;
  return names;
}

/// Counts the values of an enumeration, which are numbered from 0 without gaps. For the host's
/// compiler alone (has_values()).
template <typename E, size_t count = 0>
consteval size_t enumerator_count() {
  if constexpr (is_enumerator<static_cast<E>(count)>()) return enumerator_count<E, count + 1>();
  return count;
}

template <typename E>
std::string_view name_of(E value) {
  return EnumNames<E>::kNames[static_cast<size_t>(value)];
}

}  // namespace ftrun
