#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/owned_fd.h"

namespace ftrun {

/// What to run as a rank.
struct RankCommand {
  /// Executable; the default is the one that runs now.
  std::string program = "/proc/self/exe";
  /// All arguments, the program's own name first.
  std::vector<std::string> arguments;
  /// Set for the process on top of ours: {"RANK=0", ...}.
  std::vector<std::string> environment;
  /// Descriptors it inherits under the same numbers.
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

/// Starts a process that leads its own process group, reads /dev/null, and is killed by the kernel
/// when the calling thread's process dies. Descriptors 0 to 2 of the caller are open, be it /dev/null. Error(kEnvironment) when it
/// cannot start.
RankProcess start_rank_process(const RankCommand& command);

/// A pipe whose ends close on exec; both non-blocking when asked.
struct Pipe {
  OwnedFd reader;
  OwnedFd writer;
};
Pipe make_pipe();

}  // namespace ftrun
