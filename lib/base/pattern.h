#pragma once

#include <regex>
#include <string>

namespace ftrun {

/// Compiles a regular expression (ECMAScript) of a config or of another program's file. Matching
/// takes time polynomial in the text for any expression. Error(kUsage) with the reason for an
/// expression that is broken or longer than 1,000 characters.
std::regex user_pattern(const std::string& text);

/// Writes the path of a module as an expression that matches this path alone.
std::string pattern_of_path(const std::string& path);

}  // namespace ftrun
