#pragma once

#include <string_view>

namespace ftrun {

/// Returns whether the brackets of JSON `text` (without strings) nest deeper than `limit`. Parsing
/// needs no stack, but walking and printing the result does, so text from outside is checked first.
inline bool nests_deeper_than(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      if (++depth > limit) return true;
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

constexpr int kMaxJsonDepth = 200;

}  // namespace ftrun
