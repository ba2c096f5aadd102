#pragma once

#include <cstdint>
#include <string>

namespace ftrun {

/// Formats a time, `seconds` since 1970, in UTC: "2026-03-01T12:00:00Z".
std::string utc_text(int64_t seconds);
/// Returns the current time, as utc_text() writes it.
std::string utc_now();
/// Returns the current time in seconds since 1970, including fractions.
double wall_seconds();

}  // namespace ftrun
