#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ftrun {

/// Suggests the multiples of `unit` next to a number, after `advice`, which says what to do: "use 8
/// or 12", "use 4 or a multiple of it".
std::string nearest_multiples_text(std::string_view advice, int64_t number, int64_t unit);

}  // namespace ftrun
