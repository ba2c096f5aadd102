#include "program/lifetime.h"
#include "program/passes.h"

namespace ftrun {
namespace {

/// What O_DIRECT asks of memory; the host arena is what disks are read into.
constexpr int64_t kDiskAlignment = 4096;

}  // namespace

Program plan_memory(Program program) {
  const std::vector<StorageRequest> lives = buffer_lifetimes(program);
  for (size_t a = 0; a < kArenaCount; ++a) {
    std::vector<StorageRequest> requests(lives.size());
    for (size_t i = 0; i < lives.size(); ++i)
      if (!program.buffers[i].persistent && static_cast<size_t>(arena_of(program.buffers[i])) == a)
        requests[i] = lives[i];
    const bool host = static_cast<Arena>(a) == Arena::kHost;
    const StorageLayout layout = pack_storage(requests, host ? kDiskAlignment : kStorageAlignment);
    for (size_t i = 0; i < requests.size(); ++i)
      if (layout.offset[i] >= 0) program.buffers[i].arena_offset = layout.offset[i];
    program.arena_bytes[a] = layout.bytes;
  }
  return program;
}

}  // namespace ftrun
