#pragma once

#include <cstdint>

namespace ftrun::test {

/// Counts the allocations of this test program since it began, by all threads.
int64_t allocations_so_far();
/// Counts those allocations that were not freed yet.
int64_t allocations_alive();

/// HeldAllocations, while it exists, stops all other threads at their next allocation. One at a
/// time.
class HeldAllocations {
 public:
  HeldAllocations();
  ~HeldAllocations();
  HeldAllocations(const HeldAllocations&) = delete;
  HeldAllocations& operator=(const HeldAllocations&) = delete;
};

}  // namespace ftrun::test
