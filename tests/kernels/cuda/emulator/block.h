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

/// The indices and sizes that the running thread sees.
extern Size thread_index, block_index, block_size, grid_size;

/// Runs `body` as every thread of every block, one block after the other; with `last_first` from
/// the last block to the first. Prints a message and aborts if a block deadlocks or writes past its
/// `shared_bytes` of shared memory.
void run(Size grid, Size block, size_t shared_bytes, bool last_first,
         const std::function<void()>& body);

/// Prints a message and aborts if an address is not a multiple of `bytes`.
void require_aligned(const void* address, size_t bytes);

/// Starts an asynchronous copy of `bytes` bytes into shared memory; from null, it copies zeros.
/// Until this thread calls wait_for_copies(), the destination holds neither the old nor the new
/// bytes.
void start_copy(void* to, const void* from, size_t bytes);
/// Completes the copies that this thread started.
void wait_for_copies();

/// Returns the block's dynamic shared memory.
void* shared_memory();
/// Waits until every thread of the block that has not ended has called this function.
void block_barrier();

constexpr size_t kMaxExchanged = 64;
/// Exchanged holds the values that the 32 lanes of this thread's warp passed, by lane. The values
/// of lanes that have ended are stale.
using Exchanged = unsigned char[32][kMaxExchanged];
/// Waits until every lane of the warp that has not ended has called this function; returns all
/// values.
const Exchanged& exchange(const void* value, size_t bytes);
int lane();

/// Returns the value that lane `from` passed.
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
