#pragma once

#include <cstdint>

namespace ftrun::testing {

/// Returns the number of allocations since the start of this program, by all threads.
int64_t allocations_so_far();
/// Returns the number of those allocations that are not freed yet.
int64_t allocations_alive();

/// HeldAllocations makes all other threads stop at their next allocation while it exists. Only one
/// may exist at a time.
class HeldAllocations {
 public:
  HeldAllocations();
  ~HeldAllocations();
  HeldAllocations(const HeldAllocations&) = delete;
  HeldAllocations& operator=(const HeldAllocations&) = delete;
};

}  // namespace ftrun::testing
