#include "comm/open_files.h"

#include <sys/resource.h>

#include "base/error.h"

namespace ftrun {
namespace {

/// Connections of each rank to the job's store: its own, the heartbeat's, and that of checkpoints
/// that are written in the background.
constexpr rlim_t kConnections = 3;
/// Files that rank 0 has open in addition to these connections: data, logs, shared memory,
/// connections that have not proved themselves yet.
constexpr rlim_t kOthers = 128;

}  // namespace

void raise_open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  // A failure is ignored, because a limit that is too low is reported when it is reached.
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void check_open_file_limit(int world_size) {
  rlimit limit{};
  const rlim_t needed = kConnections * static_cast<rlim_t>(world_size) + kOthers;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  throw Error(ExitCode::kEnvironment,
              cat("rank 0 serves the job's store to ", world_size, " ranks, which takes up to ",
                  needed, " open files (", kConnections, " connections per rank, ", kOthers,
                  " for other files), and the limit of its process is ", limit.rlim_cur),
              cat("raise the soft and the hard limit where rank 0 is started: ulimit -n ", needed));
}

}  // namespace ftrun
