#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/owned_fd.h"

namespace ftrun {

/// RunFollowerOptions are DeepSpeed's `wandb` section, and the run.
struct RunFollowerOptions {
  std::string run;
  /// The project's name; "" is the script's or the client's own.
  std::string project;
  std::string group;
  std::string team;
};

/// RunFollower is the process that sends a run to Weights & Biases while it trains:
/// scripts/follow_run.py, where a Python has its client. It reads what the run writes, and nothing
/// that happens to it affects the run: it has a session of its own, a lower priority, none of the
/// run's descriptors, and its output goes to follow_run.log in the run folder, on which it holds a
/// lock as long as it lives. It ends by itself after the run has ended.
class RunFollower {
 public:
  explicit RunFollower(RunFollowerOptions options) : options_(std::move(options)) {}

  /// Starts the process, which takes a moment at most; later calls check its state without waiting.
  /// If the follower of an earlier start of the run still lives, which continues with this one, the
  /// next call tries again. Returns why the run is not sent, once; else "".
  std::string start() noexcept;
  /// Returns, when the run ends, why it was not sent, or not to the end; "" if no problem is known.
  std::string problem() noexcept;

 private:
  std::vector<std::string> arguments() const;
  std::string by_hand() const;
  std::string try_to_start();
  void check_process(int milliseconds);

  RunFollowerOptions options_;
  pid_t process_ = -1;
  /// The pipe on which the process answers once whether a Python has the client.
  OwnedFd answer_;
  bool reported_ = false;
  std::string why_not_;
};

}  // namespace ftrun
