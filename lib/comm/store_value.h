#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ftrun {

/// Values of c10d's stores are bytes.
inline std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}
inline std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace ftrun
