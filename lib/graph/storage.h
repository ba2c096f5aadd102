#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace ftrun {

/// The alignment in bytes of every buffer and value (a cache line, an AVX-512 vector).
inline constexpr int64_t kStorageAlignment = 64;

/// StorageRequest is a need of `bytes` of memory from time `first` to time `last`, both included.
struct StorageRequest {
  int64_t bytes = 0;
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = std::numeric_limits<int64_t>::min();
};

/// StorageLayout says where each request lies in an arena.
struct StorageLayout {
  /// The byte offset of each request; -1 for requests of no bytes.
  std::vector<int64_t> offset;
  int64_t bytes = 0;
  /// The effort of the search: how many times another request, or a group of requests, was
  /// examined.
  int64_t examined = 0;
};

/// Places requests in one arena so that those alive at the same time do not overlap. The layout is
/// deterministic, and nearly always as small as the sum of the requests that are alive at the
/// peak.
StorageLayout pack_storage(std::span<const StorageRequest> requests, int64_t alignment);

/// PackedArena is an arena that has been packed, with the requests that it holds.
struct PackedArena {
  std::span<const StorageRequest> requests;
  std::span<const int64_t> offset;  // by request, as in StorageLayout
  int64_t bytes = 0;
};

/// Chooses which of `requests`, which would otherwise get their own arena, are placed in gaps of
/// `arena`, and returns their byte offsets there; -1 for the remaining ones. Of the remaining
/// requests that are alive at their peak it moves the largest first, until they need no
/// more than `target_bytes` bytes.
std::vector<int64_t> fill_gaps(std::span<const StorageRequest> requests, const PackedArena& arena,
                               int64_t alignment, int64_t target_bytes);

}  // namespace ftrun
