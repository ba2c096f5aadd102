#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cluster/failure_report.h"

namespace ftrun {

/// RankEnd says how a rank's process ended, as the supervisor saw it.
struct RankEnd {
  int rank = 0;
  int64_t unix_ns = 0;
  int exit_code = 0;
  /// The signal that ended it, 0 for none.
  int signal = 0;
  /// The supervisor had already asked the ranks to stop: then the end is not a failure
  /// of its own.
  bool told_to_stop = false;
  /// The rank's work when it ended, as it showed it; "" if nothing is known.
  std::string doing;
  /// Seconds of processor time that it used, and that a process may use (ulimit -t); 0 for no
  /// limit.
  double processor_seconds = 0;
  int64_t processor_limit = 0;
};

/// Returns the exit code of a process that a signal asked to stop: 75 for SIGUSR1, which asks to be
/// started again, else 128 + its number. Signal handlers may call it.
int stop_exit_code(int signal) noexcept;

/// Says whether an end is not a failure: 0, saved and to be started again, or stopped by a signal:
/// the one that was forwarded (`forwarded`, 0 for none), or one that came to only one rank, which
/// then finished its step with all others and exited by itself with 129, 130 or 143.
bool ended_as_asked(int exit_code, int signal, int forwarded);

/// The time within which a repeated signal is the same request: timeout(1) and terminals send it to
/// a process and to its group.
inline constexpr int64_t kSameSignalMs = 1000;

/// Says whether `signal`, that many milliseconds after the `first` one that asked to stop, asks to
/// end at once without saving. Signal handlers may call it. A lost terminal (SIGHUP) never asks for
/// it: no user waits there, and systemd sends SIGTERM and SIGHUP together. Nor does a repeated
/// warning of a scheduler: SLURM loses one that comes while it starts the ranks.
bool ends_at_once(int first, int signal, int64_t after_ms) noexcept;

/// Says whether this process was started with the signal ignored, as nohup does with SIGHUP.
bool inherits_ignored(int signal) noexcept;

struct RankEnds {
  std::vector<RankEnd> ends;
  std::vector<FailureReport> reports;
  /// The time when the ranks were started; times are counted from here.
  int64_t started_ns = 0;
  /// The signal that was forwarded to the ranks, 0 for none.
  int forwarded = 0;
  /// The file that a rank logs to, "" where there is none; may be empty.
  std::function<std::string(int rank)> log_of;
};

struct FailureSummary {
  int exit_code = 0;
  /// The summary, "" when all ranks ended well.
  std::string text;
  /// The rank that was the cause, -1 when all ended well, and its message, or how it ended.
  int rank = -1;
  std::string reason;
  /// The failure may go away with that rank: a signal ended it, it held up the others,
  /// its GPU failed, or it held other bits than its replicas. Errors of files, memory or the
  /// network may as well hit any other rank.
  bool belongs_to_rank = false;
};

/// Finds the cause: the earliest failure by the ranks' own reports, else by the time they ended. "A
/// peer is lost" is how other ranks see a failure, so it is the cause only when there is no other;
/// among ranks that waited for each other, the rank that waited for nobody is the cause. The text
/// names the cause first, then the rest in order of time, then the ranks that were stopped. Where
/// the cause's report names a culprit, that is the rank of the summary, whose log is named.
FailureSummary summarize_failures(const RankEnds& all);

}  // namespace ftrun
