#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "cluster/failure_summary.h"

namespace ftrun {

/// Returns whether a restart of the ranks may succeed: the environment (5) or a peer (6) failed, or
/// a signal ended a rank. An error of the config, the data, ftrun itself or the numbers (1 to 4, 7)
/// would occur again.
bool may_succeed_on_restart(const FailureSummary& failure);

/// RestartPolicy decides when failed ranks are restarted, and when the run is abandoned. A restart
/// after which something new was saved is progress: restarts are then counted from one again.
class RestartPolicy {
 public:
  struct Options {
    /// The maximum number of consecutive restarts that save nothing new; then the run is abandoned.
    /// 0: no restarts.
    int max_restarts_without_progress = 0;
    /// The pause before the first restart; each further restart waits twice as long.
    std::chrono::milliseconds first_delay = std::chrono::seconds(1);
    std::chrono::milliseconds longest_delay = std::chrono::seconds(30);
  };

  explicit RestartPolicy(const Options& options) : options_(options) {}

  /// Counts a failure. Returns the number of consecutive failures that belong to the same rank,
  /// including this one, with nothing new saved between them; 0 if this failure belongs to no rank.
  /// Must be called exactly once per failure, before take_restart().
  int count_failure(const FailureSummary& failure, const std::string& saved);
  /// Resets the count of restarts without progress: it says nothing about a start with another
  /// number of ranks.
  void reset_progress();

  /// Takes one of the allowed restarts, and returns the pause before it; no value (std::nullopt) if
  /// the ranks are not restarted. `saved` identifies the run's newest checkpoint, "" if there is
  /// none yet.
  std::optional<std::chrono::milliseconds> take_restart(const FailureSummary& failure,
                                                        const std::string& saved);

  /// Returns the number of restarts since something new was saved, including the one that
  /// take_restart() has just taken.
  int restarts_without_progress() const { return restarts_without_progress_; }
  /// Returns the first failure since something new was saved, which later failures repeat.
  const FailureSummary& first_failure() const { return first_failure_; }

 private:
  std::chrono::milliseconds delay() const;

  Options options_;
  int restarts_without_progress_ = 0;
  std::optional<std::string> last_saved_;
  FailureSummary first_failure_;
  /// The rank that caused the last failure, the number of its consecutive failures, and the state
  /// that was saved last before them.
  int failing_rank_ = -1;
  int consecutive_failures_ = 0;
  std::string saved_at_failure_;
};

}  // namespace ftrun
