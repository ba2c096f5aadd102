#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/wait_notice.h"
#include "cluster/failure_summary.h"
#include "cluster/rank_output.h"
#include "cluster/restart_policy.h"

namespace ftrun {

struct SupervisorOptions {
  /// The number of ranks to start on this machine.
  int local_ranks = 1;
  /// The number of nodes of the job and the number of this one; each starts `local_ranks` ranks.
  int nodes = 1;
  int node = 0;
  /// The address at which rank 0 serves the rendezvous. Port 0 (one node only): the supervisor
  /// binds a socket on 127.0.0.1 that rank 0 inherits, so no other process can take the port or
  /// reach it from outside.
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  /// The main function of a rank, which runs in a fork of this process (start_rank_process) with
  /// the arguments of this start; it returns the exit code.
  std::function<int(const std::vector<std::string>& arguments)> rank_main;
  /// The arguments of every start; the first is the program's own name.
  std::vector<std::string> arguments;
  /// Further variables for every rank: {"OMP_NUM_THREADS=1"}.
  std::vector<std::string> environment;
  /// Returns the file that a rank logs to, "" if there is none; messages about failures name it.
  std::function<std::string(int rank)> log_of;
  /// The time between SIGTERM and SIGKILL for the ranks.
  std::chrono::milliseconds grace_period = std::chrono::seconds(10);
  /// The time between a rank's report that its wait for another rank timed out and the moment when
  /// that other rank is killed. It may be about to report its own failure. A stopped rank gets no
  /// such time.
  std::chrono::milliseconds time_to_report = std::chrono::seconds(1);
  /// Options of the notice that ranks that were asked to stop have not ended yet; `report` is not
  /// used.
  WaitNoticeOptions notices;
  /// Says whether standard output [0] and standard error [1] are terminals.
  std::array<bool, 2> terminal = {false, false};
  /// Called each time ranks fail, before the failure is logged.
  std::function<void(const FailureSummary&)> on_failure;
  /// The options for restarts of failed ranks; by default there are none.
  RestartPolicy::Options restarts;
  /// Returns a text that identifies the run's newest checkpoint, "" if there is none yet; a new
  /// text means progress.
  std::function<std::string()> newest_checkpoint_id;
  /// Plans each restart; without this function every start is like the first.
  RestartPolicy::PlanRestart on_restart;
  /// Writes output; the default writes to descriptors 1 and 2.
  std::function<void(OutputStream, std::string_view)> write;
};

/// Runs the ranks to their end and returns the exit code for the whole: 0 if all succeeded, else
/// that of the earliest failure (128 + n for a rank that a signal ended). The message of that
/// failure is logged as the cause, with the other failures below it. When one rank fails, the
/// others are stopped: SIGTERM, `grace_period`, SIGKILL. The same happens when a rank reports that
/// its wait for another rank timed out; that other rank is killed. If `restarts` allows it, all
/// ranks are then restarted, and one line logs the restart with the cause. A run that is abandoned
/// ends with the first failure since the last new checkpoint. A signal that asks to stop ends the
/// run, also during the pause before a restart. SIGINT, SIGTERM, SIGUSR1 and, unless it is
/// inherited ignored (nohup), SIGHUP are forwarded to the ranks; a second one (asks_to_end_at_once)
/// kills them.
///
/// Ranks get these variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
/// GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, FTRUN_SUPERVISOR (the supervisor's process id),
/// FTRUN_RESTART (the number of restarts so far), FTRUN_STATUS_FD (report_failure), FTRUN_BOARD_FD
/// (local_boards.h), on one node FTRUN_TOKEN (a new one for each start). Rank 0 also gets
/// FTRUN_STORE_FD and, if the supervisor's stdout is a terminal, FTRUN_TERMINAL=1. Call this
/// function from the main thread, before other threads start. Throws Error(kEnvironment) if a rank
/// cannot be started.
int run_supervisor(const SupervisorOptions& options);

}  // namespace ftrun
