#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/round_up.h"

namespace ftrun {

/// The alignment in bytes of addresses, offsets and lengths of direct I/O: the sector size of
/// today's disks, and a multiple of the older 512.
inline constexpr int64_t kSwapAlignment = 4096;

/// Rounds `bytes` up to whole sectors; each range in a swap file begins on a sector.
constexpr int64_t round_up_to_sector(int64_t bytes) {
  return round_up(bytes, kSwapAlignment);
}

/// AioOptions describes how a swap file is read and written. Names and defaults are those of
/// DeepSpeed's config section `aio`.
struct AioOptions {
  /// The size of one operation in bytes, a multiple of 4096; requests are cut into blocks of this
  /// size.
  int64_t block_size = int64_t{1} << 20;
  /// The number of operations in flight for each unit of intra_op_parallelism.
  int queue_depth = 8;
  /// Multiplies queue_depth. (With io_uring one thread keeps any number of operations in flight; if
  /// the kernel refuses io_uring, each operation in flight has its own thread, up to 32 threads.)
  int intra_op_parallelism = 1;
  /// Says whether blocks are submitted to the kernel one by one, each with its own system call.
  bool single_submit = false;
  /// Says whether blocks are submitted while others are in flight. False: new blocks are submitted
  /// only when none is in flight.
  bool overlap_events = true;

  int blocks_in_flight() const { return queue_depth * intra_op_parallelism; }
  /// Returns the bytes of memory that a swap file needs for itself: one sector for each block in
  /// flight.
  int64_t staging_bytes() const { return blocks_in_flight() * kSwapAlignment; }
};

/// Describes an invalid option with its key, its value and the allowed values; returns nothing if
/// all options are valid.
std::optional<std::string> aio_problem(const AioOptions& options);

}  // namespace ftrun
