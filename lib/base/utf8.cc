#include "base/utf8.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {
namespace {

std::string escaped_bytes(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

/// Returns whether a character changes how a terminal shows the text around it.
bool is_terminal_control(uint32_t character) {
  const bool is_control = (character < 0x20 && character != '\n' && character != '\t') ||
                          (character >= 0x7F && character < 0xA0);
  const bool turns_direction =
      (character >= 0x202A && character <= 0x202E) || (character >= 0x2066 && character <= 0x2069);
  return is_control || turns_direction;
}

/// Returns whether the second byte of a character is well-formed after the first (Unicode standard,
/// table 3-7), which excludes overlong forms, surrogates and values above U+10FFFF.
bool is_valid_continuation(uint8_t first, uint8_t second) {
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

/// WideEncoding is an encoding of several bytes per character: its byte order mark, and the bytes
/// of a character below U+0100 as a pattern with x for the character.
struct WideEncoding {
  std::string_view mark, pattern;
  const char* name;
};

// UTF-32 comes first, because its little-endian mark begins with that of UTF-16.
constexpr WideEncoding kWideEncodings[] = {
    {std::string_view("\xFF\xFE\0\0", 4), "x000", "UTF-32 (little-endian)"},
    {std::string_view("\0\0\xFE\xFF", 4), "000x", "UTF-32 (big-endian)"},
    {"\xFF\xFE", "x0", "UTF-16 (little-endian)"},
    {"\xFE\xFF", "0x", "UTF-16 (big-endian)"},
};

/// Returns whether the text has at least two characters in this encoding and its first ones are all
/// below U+0100.
bool looks_encoded_as(const WideEncoding& encoding, std::string_view text) {
  constexpr size_t kCharacters = 16;
  const size_t width = encoding.pattern.size(),
               size = std::min(text.size() / width, kCharacters) * width;
  if (size < 2 * width) return false;
  for (size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool character = encoding.pattern[i % width] == 'x';
    if (character == (byte == 0)) return false;
  }
  return true;
}

}  // namespace

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true};
  if (first < 0xC2 || first > 0xF4) return {0, 1, false};
  const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  uint32_t value = first & (0xFFU >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    const bool follows = i < text.size() && is_valid_continuation(i == 1 ? first : 0, byte(i));
    if (!follows) return {0, i, false};
    value = (value << 6U) | (byte(i) & 0x3FU);
  }
  return {value, size, true};
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = first_code_point(text.substr(at));
    if (!point.valid) return at;
    at += point.size;
  }
  return std::nullopt;
}

std::string detect_wide_encoding(std::string_view text) {
  for (const WideEncoding& encoding : kWideEncodings)
    if (text.starts_with(encoding.mark) || looks_encoded_as(encoding, text)) return encoding.name;
  return "";
}

void refuse_wide_encoding(std::string_view text, const std::string& where) {
  const std::string name = detect_wide_encoding(text);
  if (name.empty()) return;
  const std::string tool = cat(name.substr(0, 6), name.find("little") != name.npos ? "LE" : "BE");
  throw Error(ExitCode::kBadInput, cat(where, ": is ", name, ", expected UTF-8"),
              cat("convert it to UTF-8, for example: iconv -f ", tool, " -t UTF-8 OLD > NEW"));
}

std::string escape_not_utf8(std::string_view text) {
  std::string out;
  while (const auto bad = find_invalid_utf8(text)) {
    out.append(text.substr(0, *bad)).append(escaped_bytes(text.substr(*bad, 1)));
    text.remove_prefix(*bad + 1);
  }
  return out.append(text);
}

std::string to_one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}

std::string terminal_text(std::string_view message) {
  std::string out;
  while (!message.empty()) {
    const CodePoint point = first_code_point(message);
    const std::string_view bytes = message.substr(0, point.size);
    if (!point.valid || is_terminal_control(point.value))
      out += escaped_bytes(bytes);
    else
      out += bytes;
    message.remove_prefix(point.size);
  }
  return out;
}

}  // namespace ftrun
