#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "base/owned_fd.h"

namespace ftrun {

/// RankCommand says what to run as a rank.
struct RankCommand {
  /// Called in the new process, which ends with what it returns.
  std::function<int()> main;
  /// Set for the process on top of ours, the first of a name: {"RANK=0", ...}.
  std::vector<std::string> environment;
  /// Descriptors of ours that close on exec, which it keeps under the same numbers, and what it
  /// starts, too.
  std::vector<int> inherited;
  /// Signals blocked in the new process.
  sigset_t blocked{};
};

/// A running process and the reading ends of its output.
struct RankProcess {
  pid_t pid = -1;
  OwnedFd out;
  OwnedFd err;
};

/// Says so where the process has more than the calling thread: one that holds a lock at a fork
/// holds it in the child for ever. We start none, a tool may.
void warn_of_threads();

/// Starts a process that leads its own process group, reads /dev/null, and is killed by the kernel
/// when the calling thread's process dies. It is a fork: what the caller has loaded is there at
/// once, and its pages are shared until either writes to them. It has those of the caller's
/// descriptors that would outlast an exec, and `inherited`. The caller has no other threads, and
/// descriptors 0 to 2 are open, be it /dev/null. Error(kEnvironment) when it cannot start.
RankProcess start_rank_process(const RankCommand& command);

/// A pipe whose ends close on exec; both non-blocking when asked.
struct Pipe {
  OwnedFd reader;
  OwnedFd writer;
};
Pipe make_pipe();

}  // namespace ftrun
