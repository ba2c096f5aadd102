#pragma once

#include <cstdint>
#include <string>

namespace ftrun {

/// "2026-03-01T12:00:00Z": `seconds` since 1970, UTC.
std::string utc_text(int64_t seconds);
/// The time now, as utc_text writes it.
std::string utc_now();
/// Seconds since 1970, with their fraction.
double wall_seconds();

}  // namespace ftrun
