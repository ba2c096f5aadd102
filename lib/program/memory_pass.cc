#include "program/lifetime.h"
#include "program/passes.h"

namespace ftrun {

Program plan_memory(Program program) {
  std::vector<StorageRequest> requests = buffer_lifetimes(program);
  for (size_t i = 0; i < requests.size(); ++i)
    if (program.buffers[i].persistent) requests[i] = StorageRequest{};
  const StorageLayout layout = pack_storage(requests, kStorageAlignment);
  for (size_t i = 0; i < requests.size(); ++i) program.buffers[i].arena_offset = layout.offset[i];
  program.arena_bytes = layout.bytes;
  return program;
}

}  // namespace ftrun
