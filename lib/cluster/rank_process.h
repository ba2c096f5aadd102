#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "base/owned_fd.h"

namespace ftrun {

/// RankCommand describes the process that runs a rank.
struct RankCommand {
  /// The function that the new process runs; the process exits with its result.
  std::function<int()> main;
  /// Variables that are set for the process in addition to those of its parent, {"RANK=0", ...}; if
  /// a name is given twice, the first one counts.
  std::vector<std::string> environment;
  /// Descriptors of the parent that would close on exec, but that the process and its children keep
  /// under the same numbers.
  std::vector<int> inherited_fds;
  /// The signals that are blocked in the new process.
  sigset_t blocked_signals{};
};

/// RankProcess is a running process with the read ends of its output pipes.
struct RankProcess {
  pid_t pid = -1;
  OwnedFd out;
  OwnedFd err;
};

/// Warns if the process has other threads than the calling one: a lock that another thread holds at
/// a fork stays locked in the child forever. ftrun starts no thread before the fork, but a tool
/// may.
void warn_of_threads();

/// Starts a process that leads its own process group, reads /dev/null, and is killed by the kernel
/// when the calling thread's process dies. The process is a fork: everything that the caller has
/// loaded is available at once, and pages are shared until either process writes to them. It keeps
/// the caller's descriptors that would survive an exec, and `inherited_fds`. The caller must have
/// no other threads, and its descriptors 0 to 2 must be open, if only to /dev/null. Throws
/// Error(kEnvironment) if the process cannot be started.
RankProcess start_rank_process(const RankCommand& command);

/// Pipe is a pipe whose ends close on exec.
struct Pipe {
  OwnedFd reader;
  OwnedFd writer;
};
Pipe make_pipe();

}  // namespace ftrun
