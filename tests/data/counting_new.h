#pragma once

#include <cstdint>

namespace ftrun::test {

/// Allocations of this test program since it began, by all threads.
int64_t allocations_so_far();
/// Those of them that were not freed yet.
int64_t allocations_alive();

}  // namespace ftrun::test
