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
constexpr int64_t kSharedBytesPerRank = 32 << 20;

}  // namespace

void prepare_nccl_environment() {
  // A user's NCCL_ALGO may name NVLS, which then stays enabled.
  if (std::getenv("NCCL_ALGO") == nullptr) ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  ::setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

std::string shared_folder_warning(int ranks, const std::string& folder) {
  struct statvfs info {};
  const auto warning = [&](const std::string& what, const char* remedy) {
    return cat("NCCL may need ", folder, " for data between ranks, but ", what,
               "\n  remedy: ", remedy, ", or set NCCL_SHM_DISABLE=1");
  };
  constexpr const char* kMakeWritable = "mount it writable (docker run --ipc=host)";
  if (::statvfs(folder.c_str(), &info) != 0)
    return warning(cat("it cannot be inspected: ", errno_text(errno)), kMakeWritable);
  if ((info.f_flag & ST_RDONLY) != 0) return warning("it is mounted read-only", kMakeWritable);
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return warning(cat("this user cannot write to it: ", errno_text(errno)), kMakeWritable);
  const auto free = static_cast<int64_t>(info.f_bavail * info.f_frsize);
  const int64_t wanted = ranks * kSharedBytesPerRank;
  return free >= wanted ? ""
                        : warning(cat("it has ", human_bytes(free), " free and ", ranks,
                                      " ranks take about ", human_bytes(wanted)),
                                  "give it more space (docker run --shm-size=1g, or --ipc=host)");
}

}  // namespace ftrun
