#include "base/pattern.h"

#include "base/error.h"

namespace ftrun {

std::regex compile_pattern(const std::string& text) {
  constexpr size_t kLongest = 1000;  // parsing takes stack space for each nested group
  if (text.size() > kLongest)
    throw Error(ExitCode::kUsage,
                cat("it has ", text.size(), " characters; the limit is ", kLongest));
  try {
    // This flag of libstdc++ excludes backtracking, and with it back references, which need it.
    return std::regex(text, std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error& error) {
    throw Error(ExitCode::kUsage, cat("not a valid regular expression: ", error.what()));
  }
}

std::string pattern_of_path(const std::string& path) {
  std::string pattern;
  for (const char c : path) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
  return pattern;
}

}  // namespace ftrun
