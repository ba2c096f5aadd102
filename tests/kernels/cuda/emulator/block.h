#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace emulator {

struct Size {
  unsigned x = 1, y = 1, z = 1;
  constexpr Size(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

/// The indices of the thread that runs now.
extern Size thread_index, block_index, block_size, grid_size;

/// Runs `body` as every thread of every block, one block after the other, the last first if
/// `last_first`. Prints and aborts when a block waits for itself or writes past its `shared_bytes`
/// of shared memory.
void run(Size grid, Size block, size_t shared_bytes, bool last_first,
         const std::function<void()>& body);

/// Prints and aborts where an address is not a multiple of `bytes`.
void require_aligned(const void* address, size_t bytes);

/// Starts this thread's copy of `bytes` bytes into shared memory; from null: of zeros. Until
/// wait_for_copies() the bytes are neither what they were nor what they become.
void start_copy(void* to, const void* from, size_t bytes);
/// Ends this thread's copies.
void wait_for_copies();

/// Returns the block's dynamic shared memory.
void* shared_memory();
/// Returns when every thread of the block that has not ended has called it.
void block_barrier();

constexpr size_t kMaxExchanged = 64;
/// Exchanged holds the values that the 32 lanes of this thread's warp give, by lane; stale for
/// lanes that have ended.
using Exchanged = unsigned char[32][kMaxExchanged];
/// Returns when every lane of the warp that has not ended has called it.
const Exchanged& exchange(const void* value, size_t bytes);
int lane();

/// Returns lane `from`'s value.
template <class T>
T from_lane(const Exchanged& all, int from) {
  T value;
  std::memcpy(&value, all[from & 31], sizeof value);
  return value;
}
template <class T>
const Exchanged& exchange(const T& value) {
  static_assert(sizeof(T) <= kMaxExchanged);
  return exchange(&value, sizeof value);
}

}  // namespace emulator
