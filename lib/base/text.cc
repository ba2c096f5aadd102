#include "base/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/error.h"

namespace ftrun {
namespace {

std::string fold_spelling(std::string_view text) {
  std::string out;
  for (char c : text)
    if (c != '-' && c != '_') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::string fixed_text(double value, int digits) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return buffer.data();
}

std::string percent_text(double share, int digits) {
  return fixed_text(100 * share, digits) + " %";
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::string human_bytes(int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits{" KiB", " MiB", " GiB", " TiB", " PiB"};
  double value = static_cast<double>(bytes);
  if (std::abs(value) < 1024) return std::to_string(bytes) + " B";
  size_t unit = 0;
  for (value /= 1024; std::abs(value) >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fixed_text(value, 2) + kUnits[unit];
}

std::string human_count(int64_t count) {
  const double value = static_cast<double>(count);
  if (std::abs(value) >= 1e12) return fixed_text(value / 1e12, 2) + " T";
  if (std::abs(value) >= 1e9) return fixed_text(value / 1e9, 2) + " B";
  if (std::abs(value) >= 1e6) return fixed_text(value / 1e6, 1) + " M";
  if (std::abs(value) >= 1e4) return fixed_text(value / 1e3, 1) + " k";
  return std::to_string(count);
}

std::string human_seconds(double seconds) {
  std::array<char, 64> buffer{};
  if (seconds < 59.95) {  // 59.95 and more would be rounded to 60.0s
    std::snprintf(buffer.data(), buffer.size(), "%.1fs", seconds);
  } else {
    const auto whole = static_cast<int64_t>(std::llround(seconds));
    if (whole < 3600)
      std::snprintf(buffer.data(), buffer.size(), "%dm %02ds", static_cast<int>(whole / 60),
                    static_cast<int>(whole % 60));
    else
      std::snprintf(buffer.data(), buffer.size(), "%lldh %02dm",
                    static_cast<long long>(whole / 3600), static_cast<int>(whole / 60 % 60));
  }
  return buffer.data();
}

std::string format_number(const char* format, double value) {
  if (std::isnan(value)) value = std::abs(value);  // the sign of a NaN has no meaning
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format, value)), ' ');
  std::snprintf(text.data(), text.size() + 1, format, value);
  return text;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), result.ptr);
}

std::optional<double> consume_number(std::string_view& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number)) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (;;) {
    const size_t end = text.find(separator, start);
    parts.emplace_back(text.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::string rank_list(const std::vector<std::string>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(ranks, ", ");
}

std::string shell_word(std::string_view text) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./+,:@%=").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string closest_match(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string plain = fold_spelling(word);
  const int limit = std::max(2, static_cast<int>(word.size()) / 3);
  int best = limit + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(plain, fold_spelling(candidate));
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

std::string did_you_mean(std::string_view name) {
  return name.empty() ? "" : cat(" (did you mean \"", name, "\"?)");
}

}  // namespace ftrun
