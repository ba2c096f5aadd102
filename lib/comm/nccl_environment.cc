#include "comm/nccl_environment.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The approximate bytes of shared memory that a rank's channels to the other ranks of its machine
/// take.
constexpr int64_t kBytesOfRank = 32 << 20;

}  // namespace

void prepare_nccl_environment() {
  // A user's NCCL_ALGO may name NVLS, which then stays enabled.
  if (std::getenv("NCCL_ALGO") == nullptr) ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  ::setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

std::string shared_folder_warning(int ranks, const std::string& folder) {
  struct statvfs info {};
  const auto warning = [&](const std::string& what) {
    return cat("the ranks' GPUs may share memory in ", folder, ", which ", what,
               "\n  remedy: mount it larger and writable (docker run --shm-size=1g, or "
               "--ipc=host), or set NCCL_SHM_DISABLE=1");
  };
  if (::statvfs(folder.c_str(), &info) != 0)
    return warning(cat("cannot be looked at: ", errno_text(errno)));
  if ((info.f_flag & ST_RDONLY) != 0) return warning("is mounted read-only");
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return warning(cat("this user may not write to: ", errno_text(errno)));
  const auto free = static_cast<int64_t>(info.f_bavail * info.f_frsize);
  const int64_t wanted = ranks * kBytesOfRank;
  return free >= wanted ? ""
                        : warning(cat("has ", human_bytes(free), " free; ", ranks,
                                      " ranks take about ", human_bytes(wanted)));
}

}  // namespace ftrun
