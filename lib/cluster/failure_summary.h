#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cluster/failure_report.h"

namespace ftrun {

/// RankExit describes how a rank's process ended, as the supervisor saw it.
struct RankExit {
  int rank = 0;
  int64_t unix_ns = 0;
  int exit_code = 0;
  /// The signal that ended the process, 0 for none.
  int signal = 0;
  /// Says whether the supervisor had already asked the ranks to stop; the end is then not a failure
  /// of this rank.
  bool was_asked_to_stop = false;
  /// The work that the rank showed when it ended; "" if nothing is known.
  std::string activity;
  /// Seconds of CPU time that the process used, and the limit of this time (ulimit -t), 0 for no
  /// limit.
  double cpu_seconds = 0;
  int64_t cpu_seconds_limit = 0;
};

/// Returns the exit code of a process that a signal asked to stop: 75 for SIGUSR1, which asks for a
/// restart, else 128 + the signal's number. Signal handlers may call it.
int stop_exit_code(int signal) noexcept;

/// Returns whether the end of a process is not a failure: exit code 0, a saved run that requests a
/// restart, or a stop by a signal. The signal is the one that was forwarded (`forwarded_signal`, 0
/// for none), or one that reached a single rank, which then finished its step with all others and
/// exited with 129, 130 or 143.
bool exited_as_requested(int exit_code, int signal, int forwarded_signal);

/// The time in milliseconds within which a repeated signal counts as the same request: timeout(1)
/// and terminals send a signal both to a process and to its group.
inline constexpr int64_t kSameSignalMs = 1000;

/// Returns whether `signal`, received `after_ms` milliseconds after `first_signal`, the first
/// signal that asked to stop, asks the process to end at once without saving. Signal handlers may
/// call it. A lost terminal (SIGHUP) never asks for that: no user waits there, and systemd sends
/// SIGTERM and SIGHUP together. A scheduler's repeated warning does not either, because SLURM loses
/// a warning that it sends while it starts the ranks.
bool asks_to_end_at_once(int first_signal, int signal, int64_t after_ms) noexcept;

/// Returns whether this process ignores the signal; nohup starts programs that ignore SIGHUP.
bool is_signal_ignored(int signal) noexcept;

struct RankOutcomes {
  std::vector<RankExit> exits;
  std::vector<FailureReport> reports;
  /// The time when the ranks were started; times are counted from here.
  int64_t started_ns = 0;
  /// The signal that was forwarded to the ranks, 0 for none.
  int forwarded_signal = 0;
  /// Returns the file that a rank logs to, "" if there is none. May be an empty function.
  std::function<std::string(int rank)> log_of;
};

struct FailureSummary {
  int exit_code = 0;
  /// The text of the summary, "" if no rank failed.
  std::string text;
  /// The rank that caused the failure, -1 if no rank failed; and its message, or how it ended.
  int rank = -1;
  std::string reason;
  /// Says whether the failure may not occur again without that rank: a signal ended it, others
  /// waited for it, its GPU failed, or its state differed from its replicas. Errors of files,
  /// memory or the network are not meant: they may occur on any other rank as well.
  bool belongs_to_rank = false;
};

/// Finds the cause of a failed run: the failure that the ranks' own reports date earliest; without
/// reports, the rank that ended first. "A peer is lost" is how other ranks see a failure, so it is
/// the cause only if there is no other failure. Among ranks that waited for each other, the cause
/// is the rank that waited for no other. The text names the cause first, then the other failures in
/// order of time, then the ranks that were stopped. If the cause's report names a culprit, the
/// culprit is the rank of the summary, and the text names its log.
FailureSummary summarize_failures(const RankOutcomes& outcomes);

}  // namespace ftrun
