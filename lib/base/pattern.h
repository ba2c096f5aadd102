#pragma once

#include <regex>
#include <string>

namespace ftrun {

/// Compiles a regular expression (ECMAScript) from a config or from another program's file.
/// Matching takes time polynomial in the text for any expression. Throws Error(kUsage) with the
/// reason if the expression is invalid or longer than 1,000 characters.
std::regex compile_pattern(const std::string& text);

/// Returns a regular expression that matches the path of one module only.
std::string pattern_of_path(const std::string& path);

}  // namespace ftrun
