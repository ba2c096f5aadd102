#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/wait_notice.h"
#include "cluster/failure_summary.h"
#include "cluster/rank_output.h"
#include "cluster/restart_policy.h"

namespace ftrun {

/// Restart says what a restart begins with.
struct Restart {
  /// Variables for every rank, before those of all starts: {"FTRUN_RESUME=auto"}.
  std::vector<std::string> environment;
  /// Arguments after those of all starts.
  std::vector<std::string> arguments;
  /// Ranks to start, where the number differs from the first start; 0: as many.
  int local_ranks = 0;
  /// The checkpoint from which the ranks go on, for the line that logs the restart:
  /// "step-00000010".
  std::string from;
};

struct SupervisorOptions {
  /// Ranks to start on this machine.
  int local_ranks = 1;
  /// Nodes of the job and this one's number; each starts `local_ranks`.
  int nodes = 1;
  int node = 0;
  /// The address at which rank 0 serves the rendezvous. Port 0 (one node only): the supervisor
  /// binds a socket on 127.0.0.1 that rank 0 inherits, so no other process can take the port or
  /// reach it from outside.
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  /// The main function of a rank in a process of its own, a fork of this one (start_rank_process),
  /// with the arguments of this start; its exit code.
  std::function<int(const std::vector<std::string>& arguments)> rank_main;
  /// The arguments of every start, the program's own name first.
  std::vector<std::string> arguments;
  /// Further variables for every rank: {"OMP_NUM_THREADS=1"}.
  std::vector<std::string> environment;
  /// The file that a rank logs to, "" where there is none: the text of a failure names it.
  std::function<std::string(int rank)> log_of;
  /// The time that ranks have after SIGTERM before they are killed.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  /// The time from a rank's report of another that it waited for without result until that one is
  /// killed unless it is stopped: it may be about to report a failure of its own.
  std::chrono::milliseconds time_to_report = std::chrono::seconds(1);
  /// Options of the notice that ranks which were asked to stop have not ended yet; `say` is not
  /// used.
  WaitNoticeOptions notices;
  /// Whether standard output [0] and standard error [1] are terminals.
  std::array<bool, 2> terminal = {false, false};
  /// Called each time that ranks fail, before the failure is logged.
  std::function<void(const FailureSummary&)> on_failure;
  /// The options for restarts of failed ranks; by default there are none.
  RestartPolicy::Options restarts;
  /// Names what is saved of the run, "" for nothing yet: a new name means progress.
  std::function<std::string()> saved;
  /// Decides what the next start resumes from; nothing if the run had not begun and this failure
  /// would come again. `times`: how often in a row its rank had a failure that belongs to it
  /// (RestartPolicy::times_in_a_row). With another number of ranks, restarts without progress are
  /// counted from one again. Without it every start is like the first.
  std::function<std::optional<Restart>(const FailureSummary&, int times)> on_restart;
  /// Writes output; the default writes to descriptors 1 and 2.
  std::function<void(OutputStream, std::string_view)> write;
};

/// Runs the ranks to their end and returns the exit code for the whole: 0 when all succeeded, else
/// that of the earliest failure (128 + n for a rank that a signal ended), whose message is logged
/// as the cause with the others below it. When one rank fails the others are stopped: SIGTERM,
/// `grace`, SIGKILL. The same happens when one reports that another holds it up; that one is
/// killed. Where `restarts` allows it all ranks are then started again, which one line logs with
/// the cause; a run that is given up ends with the first of the failures since the last new
/// checkpoint. A signal that asks to stop ends the run, also during the pause before a restart.
/// SIGINT, SIGTERM, SIGUSR1 and, unless it is inherited ignored (nohup), SIGHUP are forwarded to
/// the ranks; a second one (ends_at_once) kills them.
///
/// Ranks get RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT, FTRUN_SUPERVISOR (our process id), FTRUN_RESTART (how often the ranks
/// were started again), FTRUN_STATUS_FD (report_failure), FTRUN_BOARD_FD (local_boards.h), on one
/// node FTRUN_TOKEN (a new one each start), rank 0 also FTRUN_STORE_FD and, when our stdout is a
/// terminal, FTRUN_TERMINAL=1. Call it from the main thread, before others start.
/// Error(kEnvironment) when a rank cannot start.
int run_supervisor(const SupervisorOptions& options);

}  // namespace ftrun
