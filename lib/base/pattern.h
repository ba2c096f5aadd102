#pragma once

#include <regex>
#include <string>

namespace ftrun {

/// A regular expression (ECMAScript's) that a config or another program's file gives. Matching
/// takes time polynomial in the text whatever the expression is. Error(kUsage) with the reason for
/// one that is broken or longer than 1,000 characters.
std::regex user_pattern(const std::string& text);

}  // namespace ftrun
