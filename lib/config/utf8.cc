#include "config/utf8.h"

#include <cstdint>

#include "base/error.h"

namespace ftrun {
namespace {

/// Bytes of the character that `text` begins with; 0 where it begins with none.
size_t character_bytes(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i)
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) return 0;
  const auto second = static_cast<uint8_t>(text[1]);
  const bool too_long = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0, too_large = lead == 0xF4 && second >= 0x90;
  return too_long || surrogate || too_large ? 0 : bytes;
}

}  // namespace

std::optional<size_t> first_not_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = character_bytes(text.substr(at));
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::nullopt;
}

std::string escape_not_utf8(std::string_view text) {
  std::string out;
  while (const auto bad = first_not_utf8(text)) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    const auto byte = static_cast<uint8_t>(text[*bad]);
    out += cat(text.substr(0, *bad), "\\x", kDigits[byte >> 4], kDigits[byte & 15]);
    text.remove_prefix(*bad + 1);
  }
  return out.append(text);
}

}  // namespace ftrun
