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
  /// Says whether the supervisor had already asked the ranks to stop: no failure of its own.
  bool told_to_stop = false;
  /// The rank's work when it ended, as it showed it; "" if nothing is known.
  std::string doing;
  /// Seconds of processor time that it used, and that a process may use (ulimit -t); 0 for no
  /// limit.
  double processor_seconds = 0;
  int64_t processor_limit = 0;
};

/// The exit code of a process that a signal asked to stop: 75 for SIGUSR1, which wants to be
/// started again, else 128 + its number. Handlers of signals may call it.
int stop_exit_code(int signal) noexcept;

/// Says whether an end is no failure: 0, saved and to be started again, or stopped by a signal:
/// the one that was passed on (`forwarded`, 0 for none), or one that came to a rank alone, after
/// which it finished its step with all others and left by itself with 129, 130 or 143.
bool ended_as_asked(int exit_code, int signal, int forwarded);

/// The time within which the same signal again is the same wish: timeout(1) and terminals send it
/// to a process and to its group.
inline constexpr int64_t kSameSignalMs = 1000;

/// Says whether `signal`, that many milliseconds after the `first` one that asked to stop, asks to
/// end at once without saving. Handlers of signals may call it. A lost terminal never does: nobody
/// is impatient there, and systemd sends SIGTERM and SIGHUP together. Nor does a scheduler's
/// warning that is repeated: SLURM loses one that comes while it starts the ranks.
bool ends_at_once(int first, int signal, int64_t after_ms) noexcept;

/// Says whether whoever started this process has it ignore the signal, as nohup does with SIGHUP.
bool inherits_ignored(int signal) noexcept;

struct RankEnds {
  std::vector<RankEnd> ends;
  std::vector<FailureReport> reports;
  /// The time when the ranks were started; times are counted from here.
  int64_t started_ns = 0;
  /// The signal that was passed on to the ranks, 0 for none.
  int forwarded = 0;
  /// The file that a rank logs to, "" where there is none; may be empty.
  std::function<std::string(int rank)> log_of;
};

struct FailureSummary {
  int exit_code = 0;
  /// The summary, "" when all ranks ended well.
  std::string text;
  /// The rank that was the cause, -1 when all ended well, and what it said, or how it ended.
  int rank = -1;
  std::string reason;
  /// The failure may be gone when that rank is: a signal ended it, it held up the others, its GPU
  /// failed, or it held other bits than its replicas. What files, memory or the network refuse may
  /// as well be refused to any other rank.
  bool belongs_to_rank = false;
};

/// Finds the cause: the earliest failure by the ranks' own reports, else by the time they ended. "A
/// peer is lost" is what the others see of a failure, so it is the cause only when there is no
/// other; of those that waited for each other, the one whose rank waited for nobody counts. The
/// text names the cause first, then the rest in order of time, then who was stopped. Where the
/// cause's report names a culprit, that is the rank of the summary, whose log is named.
FailureSummary summarize_failures(const RankEnds& all);

}  // namespace ftrun
