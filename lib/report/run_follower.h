#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/owned_fd.h"

namespace ftrun {

/// RunFollowerOptions holds the values of DeepSpeed's config section `wandb`, and the folder of the
/// run.
struct RunFollowerOptions {
  std::string run;
  /// The project's name; "" leaves it to the script or the client.
  std::string project;
  std::string group;
  std::string team;
};

/// RunFollower is a process that sends a run to Weights & Biases while it trains:
/// scripts/follow_run.py, run by a Python that has the client. The process reads the run's files.
/// Its failure does not affect the run: it has its own session, a lower priority, and none of the
/// run's descriptors. It writes to follow_run.log in the run folder and keeps that file locked as
/// long as it runs. It ends by itself after the run has ended.
class RunFollower {
 public:
  explicit RunFollower(RunFollowerOptions options) : options_(std::move(options)) {}

  /// Starts the process and waits for a moment at most; later calls check its state without
  /// waiting. If the follower of an earlier start of the run still runs, it continues with this
  /// start, and the next call of this function tries again. If the run is not sent, returns the
  /// reason, once; else "".
  std::string start() noexcept;
  /// Returns the reason why the run was not sent, or not completely; "" if no problem is known.
  /// Called when the run ends.
  std::string problem() noexcept;

 private:
  std::vector<std::string> arguments() const;
  std::string manual_command() const;
  std::string try_to_start();
  void check_process(int milliseconds);

  RunFollowerOptions options_;
  pid_t process_ = -1;
  /// The pipe on which the process reports once whether a Python has the client.
  OwnedFd client_check_pipe_;
  bool has_reported_ = false;
  std::string why_not_;
};

}  // namespace ftrun
