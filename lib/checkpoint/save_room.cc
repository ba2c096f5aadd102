#include "checkpoint/save_room.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

std::byte* map_memory(size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ExitCode::kEnvironment,
                cat("no host memory for the staging area of checkpoints of ", human_bytes(static_cast<int64_t>(bytes)),
                    ": ", errno_text(errno)),
                "use a smaller micro-batch or sequence, or a machine with more memory");
  return static_cast<std::byte*>(data);
}

}  // namespace

SaveRoom::SaveRoom(size_t file_bytes) : file_bytes_(file_bytes), data_(map_memory(bytes())) {}

SaveRoom::~SaveRoom() { ::munmap(data_, bytes()); }

void SaveRoom::populate() { std::memset(data_, 0, bytes()); }

}  // namespace ftrun
