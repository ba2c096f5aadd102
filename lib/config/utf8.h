#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ftrun {

/// The first byte that is not part of a character of UTF-8 (RFC 3629); nothing where all are.
std::optional<size_t> first_not_utf8(std::string_view text);

/// For messages: bytes that are not UTF-8 are written as \xNN.
std::string escape_not_utf8(std::string_view text);

}  // namespace ftrun
