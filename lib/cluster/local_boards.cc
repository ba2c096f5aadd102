#include "cluster/local_boards.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/limit_remedies.h"

namespace ftrun {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

void* map_memory(int fd, int64_t bytes) {
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

LocalBoards::LocalBoards(OwnedFd fd, void* memory, int count)
    : fd_(std::move(fd)), memory_(memory), count_(count) {}

LocalBoards LocalBoards::make(int count) {
  const int64_t bytes = count * BoardTable::kBytes;
  OwnedFd fd(::memfd_create("ftrun ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  void* memory = nullptr;
  if (fd && ::ftruncate(fd.get(), bytes) == 0 && ::fcntl(fd.get(), F_ADD_SEALS, kSeals) == 0)
    memory = map_memory(fd.get(), bytes);
  if (memory == nullptr) {
    const int error = errno;
    const std::string remedy = shared_memory_remedy(error);
    throw Error(ExitCode::kEnvironment,
                cat("cannot allocate the shared memory in which ", count,
                    " ranks show their state: ", errno_text(error)),
                remedy.empty() ? more_memory_remedy() : remedy);
  }
  return {std::move(fd), memory, count};
}

/// Opens the memory only if it is sealed: nobody can then truncate it, which would crash its
/// readers.
LocalBoards LocalBoards::open(OwnedFd fd) {
  struct stat status {};
  const bool is_sealed =
      fd && ::fcntl(fd.get(), F_GET_SEALS) == kSeals && ::fstat(fd.get(), &status) == 0;
  if (!is_sealed || status.st_size % BoardTable::kBytes != 0) {
    fd.release();  // the descriptor is something else and stays open
    return {};
  }
  ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
  void* memory = map_memory(fd.get(), status.st_size);
  if (memory == nullptr) return {};
  return {std::move(fd), memory, static_cast<int>(status.st_size / BoardTable::kBytes)};
}

LocalBoards::~LocalBoards() {
  if (memory_ != nullptr) ::munmap(memory_, static_cast<size_t>(count_ * BoardTable::kBytes));
}

LocalBoards::LocalBoards(LocalBoards&& other) noexcept
    : fd_(std::move(other.fd_)),
      memory_(std::exchange(other.memory_, nullptr)),
      count_(std::exchange(other.count_, 0)) {}

LocalBoards& LocalBoards::operator=(LocalBoards&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  std::swap(count_, other.count_);
  return *this;
}

BoardTable& LocalBoards::table(int local_rank) const {
  require(local_rank >= 0 && local_rank < count_, "a supervisor's rank has a table");
  return *reinterpret_cast<BoardTable*>(static_cast<std::byte*>(memory_) +
                                        local_rank * BoardTable::kBytes);
}

const BoardTable* LocalBoards::find_table(int rank, int pid) const {
  for (int i = 0; i < count_; ++i) {
    const BoardTable& one = table(i);
    const int32_t process = one.pid.load(std::memory_order_acquire);
    if (process != 0 && process == pid && one.rank.load(std::memory_order_relaxed) == rank)
      return &one;
  }
  return nullptr;
}

}  // namespace ftrun
