#include <algorithm>
#include <vector>

#include "base/round_up.h"
#include "program/lifetime.h"
#include "program/passes.h"

namespace ftrun {
namespace {

/// The memory alignment that O_DIRECT requires: reads from disk go directly into the host arena.
constexpr int64_t kDiskAlignment = 4096;

/// Lists the lifetimes of all buffers, with 0 bytes for buffers outside the arena.
std::vector<StorageRequest> requests_of(const Program& program,
                                        const std::vector<StorageRequest>& lifetimes, Arena arena) {
  std::vector<StorageRequest> requests(lifetimes.size());
  for (size_t i = 0; i < lifetimes.size(); ++i)
    if (!program.buffers[i].persistent_kind && arena_of(program.buffers[i]) == arena)
      requests[i] = lifetimes[i];
  return requests;
}

/// Assigns an offset to each buffer of one arena.
StorageLayout pack_arena(Program& program, const std::vector<StorageRequest>& lifetimes,
                         Arena arena) {
  const std::vector<StorageRequest> requests = requests_of(program, lifetimes, arena);
  const StorageLayout layout =
      pack_storage(requests, arena == Arena::kHost ? kDiskAlignment : kStorageAlignment);
  for (size_t i = 0; i < requests.size(); ++i)
    if (layout.offset[i] >= 0) program.buffers[i].arena_offset = layout.offset[i];
  program.arena_bytes[static_cast<size_t>(arena)] = layout.bytes;
  return layout;
}

/// Puts the largest private buffers of the device into gaps of the arena that peers read. Peers
/// read gradients, gradient buckets and the values that tensor-parallel ranks exchange. At the time
/// when activations are largest this data is small, so the arena has room.
void use_gaps_of_shared_arena(Program& program, const std::vector<StorageRequest>& lifetimes,
                              const StorageLayout& shared, const ArenaBytes& existing) {
  int64_t& bytes = program.arena_bytes[static_cast<size_t>(Arena::kShared)];
  const int64_t room = std::max(bytes, existing[static_cast<size_t>(Arena::kShared)]);
  const std::vector<int64_t> offsets =
      fill_gaps(requests_of(program, lifetimes, Arena::kDevice), {lifetimes, shared.offset, room},
                kStorageAlignment, existing[static_cast<size_t>(Arena::kDevice)]);
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] < 0) continue;
    Buffer& buffer = program.buffers[i];
    buffer.in_gap = true;
    buffer.arena_offset = offsets[i];
    bytes = std::max(bytes, round_up(offsets[i] + buffer.bytes, kStorageAlignment));
  }
}

}  // namespace

Program assign_arena_offsets(Program program, const ArenaBytes& existing) {
  const std::vector<StorageRequest> lifetimes = compute_buffer_lifetimes(program);
  for (Buffer& buffer : program.buffers) buffer.in_gap = false;
  const StorageLayout shared = pack_arena(program, lifetimes, Arena::kShared);
  use_gaps_of_shared_arena(program, lifetimes, shared, existing);
  pack_arena(program, lifetimes, Arena::kDevice);
  pack_arena(program, lifetimes, Arena::kHost);
  return program;
}

}  // namespace ftrun
