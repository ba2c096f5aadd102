#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// Formats bytes in binary units: "1.50 GiB", "512 B".
std::string human_bytes(int64_t bytes);
/// Formats a count of parameters or tokens in decimal units: "134.5 M", "1.2 B".
std::string human_count(int64_t count);
/// Formats a duration: "2h 03m", "4m 05s", "7.3s".
std::string human_seconds(double seconds);
/// Returns the shortest decimal text that reads back as the same double ("0.1", "1e-05").
std::string number_text(double value);
/// Reads a decimal number at the beginning of a text ("2.5", "1e-3"), regardless of the locale, and
/// removes it from the text. Returns nothing if the text does not begin with a finite number.
std::optional<double> consume_number(std::string_view& text);
/// Formats one number as printf does: format_number("%.2f", 1.5) is "1.50".
std::string format_number(const char* format, double value);
/// Formats a number with `digits` decimals.
std::string fixed_text(double value, int digits);
/// Formats a fraction in percent: "12.5 %" for 0.125 with one digit.
std::string percent_text(double share, int digits);

/// Returns the first line of a text, for messages; the other lines belong into logs.
std::string first_line(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
/// Joins whole numbers as join() does: "0, 1, 2".
template <typename Numbers>
std::string join_numbers(const Numbers& numbers, std::string_view separator) {
  std::vector<std::string> texts;
  for (const auto number : numbers) texts.push_back(std::to_string(number));
  return join(texts, separator);
}
/// Lists ranks: "rank 3" for one, "ranks 1, 2" for several.
std::string rank_list(const std::vector<std::string>& ranks);
template <typename Numbers>
std::string rank_list(const Numbers& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + join_numbers(ranks, ", ");
}

/// Quotes a word for a POSIX shell if it holds anything but letters, digits and "_-./+,:@%=".
std::string shell_word(std::string_view text);

/// Counts the edits (insert, delete, replace, swap of neighbors) that turn one text into the
/// other.
int edit_distance(std::string_view a, std::string_view b);
/// Finds the candidate nearest to `word`; "" if none is near: within as many edits as a third of
/// the word's length, or 2 if that is more. Case, '-' and '_' are ignored.
std::string closest_match(std::string_view word, const std::vector<std::string>& candidates);
/// Returns the end of a message: " (did you mean \"name\"?)"; "" without a name.
std::string did_you_mean(std::string_view name);

}  // namespace ftrun
