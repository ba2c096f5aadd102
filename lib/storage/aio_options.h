#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/round_up.h"

namespace ftrun {

/// Addresses, offsets and lengths of direct I/O are multiples of this many bytes: the sector size
/// of today's disks, and a multiple of the older 512.
inline constexpr int64_t kSwapAlignment = 4096;

/// Rounds `bytes` up to whole sectors: the next range in a swap file may begin there.
constexpr int64_t swap_align(int64_t bytes) {
  return round_up(bytes, kSwapAlignment);
}

/// AioOptions say how a swap file is read and written; names and defaults of DeepSpeed's `aio`
/// section.
struct AioOptions {
  /// Bytes of one operation; requests are cut into blocks of this size. A multiple of 4096.
  int64_t block_size = int64_t{1} << 20;
  /// Operations in flight for each unit of intra_op_parallelism.
  int queue_depth = 8;
  /// Multiplies queue_depth. (One thread keeps any number of operations in flight through io_uring;
  /// where that is refused, one thread serves each operation.)
  int intra_op_parallelism = 1;
  /// Says whether each block goes to the kernel in a system call of its own.
  bool single_submit = false;
  /// Blocks are submitted while others are in flight; false waits for all of these
  /// first.
  bool overlap_events = true;

  int blocks_in_flight() const { return queue_depth * intra_op_parallelism; }
  /// Returns the bytes of memory that a swap file takes for itself: one sector for each block in
  /// flight.
  int64_t staging_bytes() const { return blocks_in_flight() * kSwapAlignment; }
};

/// Describes what is wrong with the options, with key, value and allowed values; nothing when they
/// are valid.
std::optional<std::string> aio_problem(const AioOptions& options);

}  // namespace ftrun
