#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace ftrun {

/// ShmSignal is a counter in shared memory that one process raises and others wait for. Zero bytes
/// are a valid initial state. Counts may wrap: they are compared by difference.
class alignas(64) ShmSignal {
 public:
  void raise_to(uint32_t value);
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  bool has_reached(uint32_t target) const { return static_cast<int32_t>(value() - target) >= 0; }
  /// Wakes all sleepers without changing the count, so that they run their `check`.
  void wake_all();

  /// Waits until the count reaches `target`: polls for `spin`, then sleeps. `check` runs every 50
  /// ms of sleep and after a wake-up; the wait ends when it returns true. Returns false if the
  /// count was not reached.
  bool wait(uint32_t target, std::chrono::microseconds spin, const std::function<bool()>& check);

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace ftrun
