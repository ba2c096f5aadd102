#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ftrun {

/// Converts a text to bytes, the type of values in c10d's stores.
inline std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}
inline std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace ftrun
