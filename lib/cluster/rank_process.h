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
  /// Called in the new process, which exits with its result.
  std::function<int()> main;
  /// Variables set for the process in addition to ours; the first of a name counts: {"RANK=0",
  /// ...}.
  std::vector<std::string> environment;
  /// Our descriptors that close on exec, which it and its children keep under the same numbers.
  std::vector<int> inherited;
  /// Signals blocked in the new process.
  sigset_t blocked{};
};

/// RankProcess is a running process and the reading ends of its output.
struct RankProcess {
  pid_t pid = -1;
  OwnedFd out;
  OwnedFd err;
};

/// Warns where the process has more threads than the calling one: a lock that another thread holds
/// at a fork stays locked in the child for ever. We start none, a tool may.
void warn_of_threads();

/// Starts a process that leads its own process group, reads /dev/null, and is killed by the kernel
/// when the calling thread's process dies. It is a fork: everything that the caller has loaded is
/// available at once, and pages are shared until either process writes to them. It has those of the
/// caller's descriptors that would survive an exec, and `inherited`. The caller has no other
/// threads, and descriptors 0 to 2 are open, if only to /dev/null. Error(kEnvironment) when it
/// cannot start.
RankProcess start_rank_process(const RankCommand& command);

/// Pipe is a pipe whose ends close on exec.
struct Pipe {
  OwnedFd reader;
  OwnedFd writer;
};
Pipe make_pipe();

}  // namespace ftrun
