#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "graph/storage.h"
#include "program/program.h"

namespace ftrun {

/// CategoryBytes are bytes by Category.
using CategoryBytes = std::array<int64_t, kCategoryCount>;

/// Returns the sum of the bytes of all categories.
int64_t sum_categories(const CategoryBytes& bytes);

/// Lists the bytes of the arenas of a tier that are in use at each position of the program's
/// instruction list, and after its end (compute_buffer_lifetimes()).
std::vector<CategoryBytes> arena_history(const Program& program, Tier tier);
/// Does the same with `lifetimes`, the result of compute_buffer_lifetimes(), so that callers that
/// read several tiers compute it once.
std::vector<CategoryBytes> arena_history(const Program& program,
                                         const std::vector<StorageRequest>& lifetimes, Tier tier);

}  // namespace ftrun
