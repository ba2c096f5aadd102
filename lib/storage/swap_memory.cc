#include "storage/swap_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "storage/aio_options.h"

namespace ftrun {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

/// Maps `bytes` of address space that begin on a huge page: maps more than is needed, and unmaps
/// the rest.
std::byte* map_on_huge_page(size_t bytes) {
  const size_t mapped_bytes = bytes + kHugePage;
  void* const mapping =
      ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(mapping);
  const size_t unaligned_bytes =
      (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
  if (unaligned_bytes > 0) ::munmap(start, unaligned_bytes);
  ::munmap(start + unaligned_bytes + bytes, mapped_bytes - unaligned_bytes - bytes);
  return start + unaligned_bytes;
}

}  // namespace

SwapMemory::SwapMemory(int64_t bytes) : bytes_(swap_align(bytes)) {
  if (bytes_ == 0) return;
  const auto size = static_cast<size_t>(bytes_);
  data_ = map_on_huge_page(size);
  if (data_ == nullptr)
    throw Error(
        ExitCode::kEnvironment,
        cat("swap buffers of ", human_bytes(bytes_), " cannot be allocated: ", errno_text(errno)),
        "free memory on this machine, or lower offload_param's buffer_count × buffer_size");
  ::madvise(data_, size, MADV_HUGEPAGE);  // only advice: small pages are slower, but work
}

SwapMemory::~SwapMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

SwapMemory::SwapMemory(SwapMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SwapMemory& SwapMemory::operator=(SwapMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace ftrun
