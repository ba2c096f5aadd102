#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ftrun {

struct CodePoint {
  uint32_t value = 0;
  size_t size = 0;  // bytes
  bool valid = false;
};

/// Decodes the first character of a non-empty text. If the text does not begin with valid UTF-8, it
/// consumes the bytes that could have begun a character, at least one, as the Unicode standard
/// advises for replacements.
CodePoint first_code_point(std::string_view text);

/// Finds the first byte that is not part of a UTF-8 character (RFC 3629); nothing if there is none.
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// Names the encoding, "UTF-16 (little-endian)" and the like, of a text that begins with a byte
/// order mark or, without one, has the form that ASCII has in that encoding; "" for any other text.
std::string detect_wide_encoding(std::string_view text);

/// Throws Error(kBadInput), naming the encoding, for a text in UTF-16 or UTF-32; `where` is its
/// file.
void refuse_wide_encoding(std::string_view text, const std::string& where);

/// Replaces bytes that are not UTF-8 by \xNN, for messages.
std::string escape_not_utf8(std::string_view text);

/// Puts a text on one line: control characters, including line ends, become spaces.
std::string to_one_line(std::string text);

/// Makes a message safe for a terminal even if its values come from an untrusted file: control
/// characters other than line ends and tabs, marks that change the direction of text, and bytes
/// that are not UTF-8 are written as \xNN.
std::string terminal_text(std::string_view message);

}  // namespace ftrun
