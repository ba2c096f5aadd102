#include "storage/storage_system.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/file.h"
#include "base/uninterrupted.h"
#include "base/written_path.h"
#include "storage/aio_options.h"
#include "storage/thread_queue.h"

namespace ftrun {
namespace {

/// Returns 0 if `result` shows success, else the negative errno of the call that returned it.
int status_of(int result) {
  return result < 0 ? -errno : 0;
}

int set_flag(int fd, int flag, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return -errno;
  return status_of(::fcntl(fd, F_SETFL, on ? flags | flag : flags & ~flag));
}

/// Returns whether a file of this size would exceed the process's file size limit (RLIMIT_FSIZE).
/// Writing beyond it would kill the process by a signal.
bool above_size_limit(int64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
         static_cast<rlim_t>(bytes) > limit.rlim_cur;
}

class MachineStorage : public StorageSystem {
 public:
  int make_folder(const std::string& path) override {
    std::error_code error;
    const bool made = std::filesystem::create_directories(path, error);
    if (error) return -error.value();
    if (!std::filesystem::is_directory(path, error)) return -ENOTDIR;
    return made ? 1 : 0;
  }
  int open_new(const std::string& path) override {
    OwnedFd made = open_to_write(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    return made ? made.release() : -errno;
  }
  int remove(const std::string& path) override {
    const FolderEntry entry = open_parent(path);
    return entry.folder ? status_of(::unlinkat(entry.folder.get(), entry.name.c_str(), 0)) : -errno;
  }
  int reserve(int fd, int64_t bytes) override {
    if (above_size_limit(bytes)) return -EFBIG;
    // posix_fallocate() is not used: on a file system that cannot reserve space it would write a
    // byte to every block.
    const int result = status_of(uninterrupted([&] { return ::fallocate(fd, 0, 0, bytes); }));
    return result == -EOPNOTSUPP ? status_of(::ftruncate(fd, bytes)) : result;
  }
  int use_direct(int fd) override {
    alignas(kSwapAlignment) static const std::array<char, kSwapAlignment> zeros{};
    if (const int result = set_flag(fd, O_DIRECT, true); result < 0) return result;
    const ssize_t written =
        uninterrupted([&] { return ::pwrite(fd, zeros.data(), zeros.size(), 0); });
    return written < 0 ? -errno : 0;
  }
  int use_page_cache(int fd) override { return set_flag(fd, O_DIRECT, false); }
  int64_t free_bytes(const std::string& folder) override {
    return posix_files().free_bytes(folder);
  }
  bool is_in_memory(const std::string& folder) override {
    struct statfs info {};
    if (::statfs(folder.c_str(), &info) != 0) return false;
    return info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC;
  }
  QueueOrErrno open_ring_queue(int fd, int depth, bool single_submit) override {
    return ftrun::open_ring_queue(fd, depth, single_submit);
  }
  std::unique_ptr<BlockQueue> open_thread_queue(int fd, int depth) override {
    return std::make_unique<ThreadQueue>(fd, depth);
  }
  double now_seconds() override {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
  }
  void sleep(double seconds) override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
};

}  // namespace

StorageSystem& machine_storage() {
  static MachineStorage storage;
  return storage;
}

}  // namespace ftrun
