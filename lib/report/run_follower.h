#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/owned_fd.h"

namespace ftrun {

/// DeepSpeed's `wandb` section, and the run.
struct RunFollowerOptions {
  std::string run;
  /// The project's name; "" is the script's or the client's own.
  std::string project;
  std::string group;
  std::string team;
};

/// The process that sends a run to Weights & Biases while it trains: scripts/follow_run.py, where a
/// Python has its client. It reads what the run writes, and nothing that happens to it touches the
/// run: it has a session of its own, a lower priority, none of the run's descriptors, and its
/// output goes to follow_run.log in the run folder, on which it holds a lock as long as it lives.
/// It ends after the run has, by itself.
class RunFollower {
 public:
  explicit RunFollower(RunFollowerOptions options) : options_(std::move(options)) {}

  /// Starts it, which takes a moment at most; later calls look what became of it, which takes none.
  /// If the follower of an earlier start of the run still lives, which goes on with this one, the
  /// next call tries again. Returns why the run is not sent, once; else "".
  std::string start() noexcept;
  /// Tells, when the run ends, why it was not sent, or not to the end; "" if nothing is known
  /// against it.
  std::string problem() noexcept;

 private:
  std::vector<std::string> arguments() const;
  std::string by_hand() const;
  std::string try_to_start();
  void look(int milliseconds);

  RunFollowerOptions options_;
  pid_t process_ = -1;
  /// Says once whether a Python has the client.
  OwnedFd answer_;
  bool told_ = false;
  std::string why_not_;
};

}  // namespace ftrun
