#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// Returns the number of terminal columns of UTF-8 `text`: one per code point (no wide or combining
/// characters).
size_t text_columns(std::string_view text);

/// Makes a text table of headers, a line of dashes, and rows. Columns are separated by two spaces;
/// no line ends in a space; every line ends in '\n'. A column of numbers (cells that start with a
/// digit, a sign or a point, "nan", "inf", "-" or nothing) is aligned to the right, any other to
/// the left. A row shorter than the headers is filled with empty cells; cells beyond the headers
/// are a bug.
std::string format_table(const std::vector<std::string>& headers,
                         const std::vector<std::vector<std::string>>& rows);

/// Returns by how much `measured` differs from `expected`: "+0.82 %"; "-" if `expected` is 0.
std::string percent_error_text(int64_t measured, int64_t expected);

}  // namespace ftrun
