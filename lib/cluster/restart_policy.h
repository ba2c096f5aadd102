#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "cluster/failure_summary.h"

namespace ftrun {

/// Says whether the ranks may get further when they are started again: the environment (5) or a
/// peer (6) failed, or a signal ended a rank. A config, the data, a defect of ftrun or the numbers
/// (1 to 4, 7) fail the same way again.
bool may_succeed_on_restart(const FailureSummary& failure);

/// RestartPolicy decides when to start failed ranks again, and when to give up. A restart after
/// which something new was saved is progress: the next failure is counted from one again.
class RestartPolicy {
 public:
  struct Options {
    /// Restarts in a row that save nothing new, before the run is given up; 0: no restarts.
    int without_progress = 0;
    /// The pause before the first restart; each further one waits twice as long.
    std::chrono::milliseconds first_delay = std::chrono::seconds(1);
    std::chrono::milliseconds longest_delay = std::chrono::seconds(30);
  };

  explicit RestartPolicy(const Options& options) : options_(options) {}

  /// Counts how often in a row the same rank had a failure that belongs to it, this time included,
  /// with nothing new saved meanwhile; 0 if this one belongs to none. Call it once for each
  /// failure, before after().
  int times_in_a_row(const FailureSummary& failure, const std::string& saved);
  /// Forgets the restarts without progress, which say nothing about a start with other ranks.
  void forget();

  /// Returns the pause before the ranks are started again; nothing when they are not. `saved` names
  /// what is saved of the run: "" for nothing yet.
  std::optional<std::chrono::milliseconds> after(const FailureSummary& failure,
                                                 const std::string& saved);

  /// Counts the restarts since something new was saved, the one that after() has just allowed
  /// included.
  int without_progress() const { return without_progress_; }
  /// Returns the first failure since then, which the later ones repeat.
  const FailureSummary& first() const { return first_; }

 private:
  std::chrono::milliseconds delay() const;

  Options options_;
  int without_progress_ = 0;
  std::optional<std::string> saved_;
  FailureSummary first_;
  /// The rank that was the cause last, how often in a row, and what was saved then.
  int failing_rank_ = -1;
  int times_ = 0;
  std::string saved_at_failure_;
};

}  // namespace ftrun
