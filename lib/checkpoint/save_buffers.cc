#include "checkpoint/save_buffers.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/limit_remedies.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The size of huge pages. With them the kernel has to look up only a few pages for each piece that
/// it moves between this memory and a disk.
constexpr size_t kLargePage = size_t{2} << 20;

std::byte* map_memory(size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ExitCode::kEnvironment,
                cat("no main memory for the staging area of checkpoints of ",
                    human_bytes(static_cast<int64_t>(bytes)), ": ", errno_text(errno)),
                less_memory_remedy());
  return static_cast<std::byte*>(data);
}

}  // namespace

SaveBuffers::SaveBuffers(size_t file_bytes)
    : file_bytes_(file_bytes),
      mapped_(map_memory(bytes() + kLargePage)),
      data_(mapped_ +
            (kLargePage - reinterpret_cast<uintptr_t>(mapped_) % kLargePage) % kLargePage) {
  // Only whole huge pages are requested, so that none extends beyond the memory that is used.
  ::madvise(data_, bytes() / kLargePage * kLargePage, MADV_HUGEPAGE);
}

SaveBuffers::~SaveBuffers() {
  ::munmap(mapped_, bytes() + kLargePage);
}

void SaveBuffers::allocate_pages() {
  std::memset(data_, 0, bytes());
}

}  // namespace ftrun
