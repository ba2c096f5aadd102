#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ftrun {

/// Formats a number of things: "1 rank", "2 ranks".
std::string count_text(int64_t count, std::string_view noun);

/// Formats seconds with four digits: "0.05586 s".
std::string seconds_text(double seconds);

/// Formats a difference as a share of 1 in percent, with its sign: "+12.5 %", "-3.0 %".
std::string signed_percent_text(double share, int digits);

}  // namespace ftrun
