#include "base/table.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

struct Column {
  size_t width = 0;
  bool aligns_right = true;
};

bool looks_like_number(std::string_view cell) {
  if (cell.empty() || cell == "nan" || cell == "inf" || cell == "-") return true;
  if (cell.front() == '-' || cell.front() == '+' || cell.front() == '.') cell.remove_prefix(1);
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell.front())) != 0 ||
                           cell.front() == '.' || cell == "inf");
}

std::vector<Column> measure_columns(const std::vector<std::string>& headers,
                                    const std::vector<std::vector<std::string>>& rows) {
  std::vector<Column> columns(headers.size());
  for (size_t i = 0; i < headers.size(); ++i)
    columns[i] = {text_columns(headers[i]), !rows.empty()};
  for (const auto& row : rows) {
    require(row.size() <= headers.size(),
            "a row of a table has at most as many cells as there are headers");
    for (size_t i = 0; i < row.size(); ++i) {
      columns[i].width = std::max(columns[i].width, text_columns(row[i]));
      columns[i].aligns_right = columns[i].aligns_right && looks_like_number(row[i]);
    }
  }
  return columns;
}

void add_line(std::string& out, const std::vector<std::string>& cells,
              const std::vector<Column>& columns) {
  std::string line;
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string cell = i < cells.size() ? cells[i] : "";
    const std::string space(columns[i].width - text_columns(cell), ' ');
    if (i > 0) line += "  ";
    line += columns[i].aligns_right ? space + cell : cell + space;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out += line + "\n";
}

}  // namespace

size_t text_columns(std::string_view text) {
  // In UTF-8, every byte that is not a continuation byte (10xxxxxx) starts a code point.
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string format_table(const std::vector<std::string>& headers,
                         const std::vector<std::vector<std::string>>& rows) {
  const std::vector<Column> columns = measure_columns(headers, rows);
  std::vector<std::string> dashes;
  for (const Column& column : columns) dashes.emplace_back(column.width, '-');
  std::string out;
  add_line(out, headers, columns);
  add_line(out, dashes, columns);
  for (const auto& row : rows) add_line(out, row, columns);
  return out;
}

std::string percent_error_text(int64_t measured, int64_t expected) {
  if (expected == 0) return "-";
  const auto whole = static_cast<double>(expected);
  return format_number("%+.2f %%", 100 * (static_cast<double>(measured) - whole) / whole);
}

}  // namespace ftrun
