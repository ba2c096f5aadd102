#include "cluster/restart_policy.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ftrun {

bool may_succeed_on_restart(const FailureSummary& failure) {
  return failure.exit_code == static_cast<int>(ExitCode::kEnvironment) ||
         failure.exit_code == static_cast<int>(ExitCode::kPeerLost) || failure.exit_code > 128;
}

RestartPolicy::RestartPolicy(const Options& options, PlanRestart plan)
    : options_(options), plan_(std::move(plan)) {}

RestartDecision RestartPolicy::decide(const FailureSummary& failure,
                                      const std::string& checkpoint_id) {
  RestartDecision decision;
  decision.consecutive_failures = count_failure(failure, checkpoint_id);
  if (!has_restart_left(checkpoint_id, decision.consecutive_failures)) {
    decision.restart.local_ranks = local_ranks_;
  } else if (plan_) {
    std::optional<RestartSettings> planned = plan_(failure, decision.consecutive_failures);
    if (!planned) return decision;
    decision.restart = *std::move(planned);
  }
  if (decision.restart.local_ranks != local_ranks_) {
    last_checkpoint_id_.reset();
    consecutive_failures_ = 0;
  }
  if (last_checkpoint_id_ != checkpoint_id) {
    restarts_without_progress_ = 0;
    first_failure_ = failure;
  }
  last_checkpoint_id_ = checkpoint_id;
  if (restarts_without_progress_ < options_.max_restarts_without_progress) {
    ++restarts_without_progress_;
    local_ranks_ = decision.restart.local_ranks;
    decision.delay = next_delay();
  } else if (restarts_without_progress_ > 0) {
    decision.repeated_failure = first_failure_;
  }
  decision.restarts_without_progress = restarts_without_progress_;
  return decision;
}

/// Returns whether a failure, one of `consecutive_failures`, may be followed by a restart: one of
/// the allowed restarts, or a start with other ranks.
bool RestartPolicy::has_restart_left(const std::string& checkpoint_id,
                                     int consecutive_failures) const {
  const bool may_remove_ranks =
      options_.may_remove_ranks && options_.may_remove_ranks(consecutive_failures);
  return may_remove_ranks || last_checkpoint_id_ != checkpoint_id ||
         restarts_without_progress_ < options_.max_restarts_without_progress;
}

int RestartPolicy::count_failure(const FailureSummary& failure, const std::string& checkpoint_id) {
  const bool again = failure.rank == failing_rank_ && checkpoint_id == checkpoint_id_at_failure_;
  consecutive_failures_ = !failure.belongs_to_rank ? 0 : again ? consecutive_failures_ + 1 : 1;
  failing_rank_ = failure.rank;
  checkpoint_id_at_failure_ = checkpoint_id;
  return consecutive_failures_;
}

std::chrono::milliseconds RestartPolicy::next_delay() const {
  auto delay = options_.first_delay;
  for (int doubled = 1; doubled < restarts_without_progress_ && delay < options_.longest_delay;
       ++doubled)
    delay *= 2;
  return std::min(delay, options_.longest_delay);
}

}  // namespace ftrun
