#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace ftrun {

/// Every buffer and value starts at a multiple of this many bytes (a cache line, an AVX-512
/// vector).
inline constexpr int64_t kStorageAlignment = 64;

/// StorageRequest asks for `bytes` of memory from time `first` to time `last`, both included.
struct StorageRequest {
  int64_t bytes = 0;
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = std::numeric_limits<int64_t>::min();
};

struct StorageLayout {
  /// Byte offset by request; -1 for requests of no bytes.
  std::vector<int64_t> offset;
  int64_t bytes = 0;
  /// The effort: how many other requests, or groups of them, were looked at.
  int64_t looks = 0;
};

/// Places requests in one arena so that those alive at the same time do not overlap. The layout is
/// deterministic, and nearly always as small as what lives at the fullest time.
StorageLayout pack_storage(std::span<const StorageRequest> requests, int64_t alignment);

/// PackedArena is an arena that has been packed, and what lies in it.
struct PackedArena {
  std::span<const StorageRequest> requests;
  std::span<const int64_t> offset;  // by request, as in StorageLayout
  int64_t bytes = 0;
};

/// Chooses which of `requests`, which would be packed into an arena of their own, lie in gaps of
/// `arena` instead, and returns their byte offsets there; -1 for those that stay. Takes the largest
/// first of those alive at the fullest time of what stays, until that needs no more than `enough`
/// bytes.
std::vector<int64_t> fill_gaps(std::span<const StorageRequest> requests, const PackedArena& arena,
                               int64_t alignment, int64_t enough);

}  // namespace ftrun
