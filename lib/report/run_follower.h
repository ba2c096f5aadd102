#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/owned_fd.h"

namespace ftrun {

/// RunFollowerOptions hold DeepSpeed's section `wandb`, and the run.
struct RunFollowerOptions {
  std::string run;
  /// The project's name; "" leaves it to the script or the client.
  std::string project;
  std::string group;
  std::string team;
};

/// RunFollower is the process that sends a run to Weights & Biases while it trains:
/// scripts/follow_run.py, run by a Python that has the client. It reads the run's files, and its
/// failure does not affect the run: it has its own session, a lower priority, and none of the run's
/// descriptors. It writes to follow_run.log in the run folder, and holds a lock on that file as
/// long as it lives. It ends by itself after the run has ended.
class RunFollower {
 public:
  explicit RunFollower(RunFollowerOptions options) : options_(std::move(options)) {}

  /// Starts the process, which takes a moment at most; later calls check its state without waiting.
  /// If the follower of an earlier start of the run still lives, it continues with this start, and
  /// the next call tries again. Returns the reason why the run is not sent, once; else "".
  std::string start() noexcept;
  /// Returns, when the run ends, the reason why it was not sent, or not completely; "" if no
  /// problem is known.
  std::string problem() noexcept;

 private:
  std::vector<std::string> arguments() const;
  std::string by_hand() const;
  std::string try_to_start();
  void check_process(int milliseconds);

  RunFollowerOptions options_;
  pid_t process_ = -1;
  /// The pipe on which the process reports once whether a Python has the client.
  OwnedFd answer_;
  bool reported_ = false;
  std::string why_not_;
};

}  // namespace ftrun
