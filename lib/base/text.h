#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// "1.50 GiB", "512 B": binary units.
std::string human_bytes(int64_t bytes);
/// "134.5 M", "1.2 B": decimal units for counts of parameters or tokens.
std::string human_count(int64_t count);
/// "2h 03m", "4m 05s", "7.3s".
std::string human_seconds(double seconds);
/// Shortest decimal text that reads back as the same double ("0.1", "1e-05").
std::string number_text(double value);
/// printf's text of one number: format_number("%.2f", 1.5) is "1.50".
std::string format_number(const char* format, double value);
/// Writes a number with so many digits behind the point.
std::string fixed_text(double value, int digits);
/// A share of 1: "12.5 %" of 0.125 with one digit.
std::string percent_text(double share, int digits);

/// Cuts a text at the first line end: what some exceptions and messages put below it is for logs.
std::string first_line(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
/// "0, 1, 2": join() of whole numbers.
template <typename Numbers>
std::string join_numbers(const Numbers& numbers, std::string_view separator) {
  std::vector<std::string> texts;
  for (const auto number : numbers) texts.push_back(std::to_string(number));
  return join(texts, separator);
}

/// A word as a POSIX shell reads it: quoted where it holds anything but letters, digits and
/// "_-./+,:@%=".
std::string shell_word(std::string_view text);

/// Edits (insert, delete, replace, swap of neighbours) that turn one text into the other.
int edit_distance(std::string_view a, std::string_view b);
/// The candidate nearest to `word` within a third of its length (at least 2 edits, also matching
/// without regard to case, '-' and '_'); "" when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
/// " (did you mean \"name\"?)", for the end of a message; "" without a name.
std::string did_you_mean(std::string_view name);

}  // namespace ftrun
