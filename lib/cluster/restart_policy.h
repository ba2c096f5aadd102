#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/failure_summary.h"

namespace ftrun {

/// RestartSettings describes how a restart differs from the first start.
struct RestartSettings {
  /// Variables for every rank, which override those of all starts: {"FTRUN_RESUME=auto"}.
  std::vector<std::string> environment;
  /// Arguments that are added after those of all starts.
  std::vector<std::string> arguments;
  /// The number of ranks to start, or 0 to start as many as at first.
  int local_ranks = 0;
  /// The checkpoint from which the ranks continue, for the line that logs the restart:
  /// "step-00000010".
  std::string checkpoint;
};

/// RestartDecision says what follows a failure of the ranks.
struct RestartDecision {
  /// The pause before the restart; no value: the ranks are not restarted.
  std::optional<std::chrono::milliseconds> delay;
  /// The restart, if there is one.
  RestartSettings restart;
  /// The number of consecutive failures that belong to the same rank, including this one, with
  /// nothing new saved between them; 0 if this failure belongs to no rank.
  int consecutive_failures = 0;
  /// The number of restarts since something new was saved, including this one.
  int restarts_without_progress = 0;
  /// The first failure since something new was saved, which this one repeats; no value unless the
  /// restarts without progress are used up.
  std::optional<FailureSummary> repeated_failure;
};

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
    /// Says whether the plan may continue with other ranks after so many consecutive failures of a
    /// rank; null: it never does.
    std::function<bool(int consecutive_failures)> may_remove_ranks = nullptr;
  };
  /// PlanRestart decides how the next start continues; returns nothing if the run had not begun and
  /// this failure would occur again. The number is RestartDecision::consecutive_failures.
  using PlanRestart = std::function<std::optional<RestartSettings>(const FailureSummary&,
                                                                   int consecutive_failures)>;

  /// Makes a policy whose `plan` decides how each start continues. If it is null, every start is
  /// like the first.
  explicit RestartPolicy(const Options& options, PlanRestart plan = nullptr);

  /// Counts a failure that may_succeed_on_restart(), and takes one of the allowed restarts if there
  /// is one. `checkpoint_id` identifies the run's newest checkpoint, "" if there is none yet. If
  /// the plan changes the number of ranks, restarts and failures are counted from one again: those
  /// of a start with another number say nothing about this one. The plan is not asked if no restart
  /// is left.
  RestartDecision decide(const FailureSummary& failure, const std::string& checkpoint_id);

 private:
  bool has_restart_left(const std::string& checkpoint_id, int consecutive_failures) const;
  int count_failure(const FailureSummary& failure, const std::string& checkpoint_id);
  std::chrono::milliseconds next_delay() const;

  Options options_;
  PlanRestart plan_;
  /// RestartSettings::local_ranks of the last start.
  int local_ranks_ = 0;
  int restarts_without_progress_ = 0;
  std::optional<std::string> last_checkpoint_id_;
  FailureSummary first_failure_;
  /// The rank that caused the last failure, the number of its consecutive failures, and the newest
  /// checkpoint before them.
  int failing_rank_ = -1;
  int consecutive_failures_ = 0;
  std::string checkpoint_id_at_failure_;
};

}  // namespace ftrun
