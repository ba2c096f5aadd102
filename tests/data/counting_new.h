#pragma once

#include <cstdint>

namespace ftrun::test {

/// Allocations of this test program since it began, by all threads.
int64_t allocations_so_far();
/// Counts those of them that were not freed yet.
int64_t allocations_alive();

/// HeldAllocations makes all other threads stand at their next allocation while there is one. One
/// at a time.
class HeldAllocations {
 public:
  HeldAllocations();
  ~HeldAllocations();
  HeldAllocations(const HeldAllocations&) = delete;
  HeldAllocations& operator=(const HeldAllocations&) = delete;
};

}  // namespace ftrun::test
