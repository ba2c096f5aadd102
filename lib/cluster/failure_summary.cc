#include "cluster/failure_summary.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <tuple>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr int kPeerLostCode = static_cast<int>(ExitCode::kPeerLost);

/// RankFailure is one rank's failure, merged from its report and from how its process ended.
struct RankFailure {
  int rank = 0;
  int64_t unix_ns = 0;
  int exit_code = 0;
  int signal = 0;
  std::string activity;
  std::string message;
  int culprit = -1;
  bool is_device_failure = false;
  double cpu_seconds = 0;
  int64_t cpu_seconds_limit = 0;

  int causing_rank() const { return culprit >= 0 ? culprit : rank; }
};

const FailureReport* earliest_report(const std::vector<FailureReport>& reports, int rank) {
  const FailureReport* found = nullptr;
  for (const FailureReport& report : reports) {
    if (report.rank == rank && (found == nullptr || report.unix_ns < found->unix_ns))
      found = &report;
  }
  return found;
}

/// Moves the cause to the front: the last rank of a chain of ranks that waited for each other. The
/// first rank of the chain may have reported earlier, but the rank for which it waited knows more.
void move_root_cause_first(std::vector<RankFailure>& failures) {
  const auto waited_in_vain = [](const RankFailure& failure) {
    return failure.exit_code == kPeerLostCode && failure.culprit >= 0;
  };
  auto cause = failures.begin();
  for (size_t followed = 0; waited_in_vain(*cause); ++followed) {
    const auto next = std::find_if(failures.begin(), failures.end(), [&](const RankFailure& other) {
      return other.rank == cause->culprit && waited_in_vain(other);
    });
    if (next == failures.end()) break;
    if (followed == failures.size()) return;  // the waits form a ring: the order stays
    cause = next;
  }
  std::rotate(failures.begin(), cause, cause + 1);
}

std::vector<RankFailure> collect_failures(const RankOutcomes& outcomes) {
  std::vector<RankFailure> failures;
  for (const RankExit& rank_exit : outcomes.exits) {
    const FailureReport* report = earliest_report(outcomes.reports, rank_exit.rank);
    if (exited_as_requested(rank_exit.exit_code, rank_exit.signal, outcomes.forwarded_signal) ||
        (rank_exit.was_asked_to_stop && report == nullptr))
      continue;
    RankFailure failure{rank_exit.rank,
                        rank_exit.unix_ns,
                        rank_exit.exit_code,
                        rank_exit.signal,
                        rank_exit.activity,
                        "",
                        -1,
                        false};
    failure.cpu_seconds = rank_exit.cpu_seconds;
    failure.cpu_seconds_limit = rank_exit.cpu_seconds_limit;
    if (report != nullptr) {
      failure.unix_ns = report->unix_ns;
      // If the supervisor ended the rank, only its report counts.
      if (rank_exit.was_asked_to_stop) {
        failure.exit_code = report->exit_code;
        failure.signal = 0;
      }
      failure.activity = report->activity;
      failure.culprit = report->culprit;
      failure.is_device_failure = report->is_device_failure;
      failure.message = report->message;
    }
    failures.push_back(std::move(failure));
  }
  std::sort(failures.begin(), failures.end(), [](const RankFailure& a, const RankFailure& b) {
    return std::tuple(a.exit_code == kPeerLostCode, a.unix_ns, a.rank) <
           std::tuple(b.exit_code == kPeerLostCode, b.unix_ns, b.rank);
  });
  if (!failures.empty()) move_root_cause_first(failures);
  return failures;
}

/// Returns a text that says why the kernel may have ended a rank. The kernel compares the limit of
/// CPU time with ticks of its clock, but reports the used time in nanoseconds, so the two differ.
std::string kernel_hint(const RankFailure& failure) {
  constexpr double kNearly = 0.9;
  const bool is_limited =
      failure.cpu_seconds_limit > 0 && (failure.signal == SIGKILL || failure.signal == SIGXCPU);
  const std::string limit = cat(failure.cpu_seconds_limit, " s of CPU time that a process may use");
  if (is_limited && failure.cpu_seconds >= kNearly * static_cast<double>(failure.cpu_seconds_limit))
    return cat("; it has used the ", limit, ": raise ulimit -t");
  if (failure.signal != SIGKILL) return "";
  const std::string used =
      is_limited ? cat(", and after the ", limit,
                       " (ulimit -t); seconds used: ", fixed_text(failure.cpu_seconds, 1))
                 : "";
  return cat("; the kernel does this when memory runs out", used);
}

std::string how_it_ended(const RankFailure& failure) {
  if (failure.signal == 0) return cat("exit code ", failure.exit_code);
  return cat("killed by signal ", failure.signal, " (", strsignal(failure.signal),
             kernel_hint(failure), ")");
}

/// Returns whether a failure is caused by its rank alone. A rank that ended without a report counts
/// only if a signal ended it; a rank that crashed after its report counts by the report.
bool belongs_to_rank(const RankFailure& failure) {
  if (failure.is_device_failure) return true;
  if (failure.exit_code == kPeerLostCode) return failure.culprit >= 0;
  return failure.signal != 0 && failure.message.empty();
}

/// Returns whether two failures are the same: joint work of ranks fails on all of them with the
/// same message.
bool same_failure(const RankFailure& a, const RankFailure& b) {
  return a.exit_code == b.exit_code && a.signal == b.signal && a.message == b.message &&
         !a.message.empty();
}

/// Returns the text "rank 0" or "ranks 0, 1, 2": the ranks in ascending order, regardless of the
/// order in which they ended.
std::string sorted_rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return rank_list(ranks);
}

/// Lists `failure`'s rank and the ranks that had the same failure.
std::string ranks_with_failure(const RankFailure& failure,
                               const std::vector<RankFailure>& failures) {
  std::vector<int> ranks{failure.rank};
  for (const RankFailure& other : failures)
    if (other.rank != failure.rank && same_failure(other, failure)) ranks.push_back(other.rank);
  return sorted_rank_list(std::move(ranks));
}

std::string failure_text(const RankFailure& failure, const std::string& ranks, int64_t since_ns,
                         std::string_view since) {
  const double seconds = static_cast<double>(failure.unix_ns - since_ns) * 1e-9;
  std::string line = cat(ranks, ": ", how_it_ended(failure), ", ",
                         human_seconds(std::max(seconds, 0.0)), " ", since);
  if (!failure.activity.empty()) line += cat(", in ", failure.activity);
  if (!failure.message.empty()) line += cat(": ", failure.message);
  return line;
}

std::string stopped_ranks_text(const RankOutcomes& outcomes,
                               const std::vector<RankFailure>& failures) {
  std::vector<int> ranks;
  for (const RankExit& rank_exit : outcomes.exits) {
    const bool has_failed =
        std::any_of(failures.begin(), failures.end(),
                    [&](const RankFailure& f) { return f.rank == rank_exit.rank; });
    if (rank_exit.was_asked_to_stop && !has_failed) ranks.push_back(rank_exit.rank);
  }
  return ranks.empty() ? "" : "\n  stopped because of it: " + sorted_rank_list(std::move(ranks));
}

/// Returns the exit code if all ranks ended as asked: 0, or 75, or 128 + the signal that was
/// forwarded.
int orderly_exit_code(const RankOutcomes& outcomes) {
  int code = 0;
  for (const RankExit& rank_exit : outcomes.exits)
    code = std::max(code, rank_exit.was_asked_to_stop ? stop_exit_code(outcomes.forwarded_signal)
                          : rank_exit.signal != 0     ? stop_exit_code(rank_exit.signal)
                                                      : rank_exit.exit_code);
  return code;
}

}  // namespace

bool exited_as_requested(int exit_code, int signal, int forwarded_signal) {
  if (exit_code == 0 || exit_code == static_cast<int>(ExitCode::kRequeue)) return true;
  if (forwarded_signal != 0 && exit_code == 128 + forwarded_signal) return true;
  return signal == 0 &&
         (exit_code == 128 + SIGHUP || exit_code == 128 + SIGINT || exit_code == 128 + SIGTERM);
}

int stop_exit_code(int signal) noexcept {
  return signal == SIGUSR1 ? static_cast<int>(ExitCode::kRequeue) : 128 + signal;
}

bool asks_to_end_at_once(int first_signal, int signal, int64_t after_ms) noexcept {
  if (signal == SIGHUP || (signal == SIGUSR1 && first_signal == SIGUSR1)) return false;
  const bool same = signal == first_signal || (first_signal == SIGHUP && signal == SIGTERM);
  return !same || after_ms >= kSameSignalMs;
}

bool is_signal_ignored(int signal) noexcept {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

FailureSummary summarize_failures(const RankOutcomes& outcomes) {
  const std::vector<RankFailure> failures = collect_failures(outcomes);
  if (failures.empty()) {
    return {.exit_code = orderly_exit_code(outcomes), .text = "", .reason = ""};
  }
  const RankFailure& cause = failures.front();
  std::string text = failure_text(cause, ranks_with_failure(cause, failures), outcomes.started_ns,
                                  "after the start");
  for (size_t i = 1; i < failures.size(); ++i)
    if (!same_failure(failures[i], cause))
      text += "\n  then " +
              failure_text(failures[i], cat("rank ", failures[i].rank), cause.unix_ns, "later");
  text += stopped_ranks_text(outcomes, failures);
  if (const std::string log = outcomes.log_of ? outcomes.log_of(cause.causing_rank()) : "";
      !log.empty())
    text += cat("\n  its log: ", log);
  return {cause.exit_code, text, cause.causing_rank(),
          cause.message.empty() ? how_it_ended(cause) : cause.message, belongs_to_rank(cause)};
}

}  // namespace ftrun
