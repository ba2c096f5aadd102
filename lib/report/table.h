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

/// Makes a text table: headers, a line of dashes, rows; two spaces between columns, no space at the
/// end of a line, every line ended by '\n'. A column of numbers (cells that start with a digit, a
/// sign or a point, "nan", "inf", "-" or nothing) is aligned to the right, any other to the left. A
/// row shorter than the headers is filled with empty cells; cells beyond the headers are a bug.
std::string format_table(const std::vector<std::string>& headers,
                         const std::vector<std::vector<std::string>>& rows);

/// Writes by how much `measured` differs from `expected`, "+0.82 %"; "-" when nothing was expected.
std::string percent_error_text(int64_t measured, int64_t expected);

}  // namespace ftrun
