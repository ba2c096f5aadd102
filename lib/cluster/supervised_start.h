#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hmac.h"
#include "base/owned_fd.h"
#include "base/wait_notice.h"
#include "cluster/failure_report.h"
#include "cluster/failure_summary.h"
#include "cluster/local_boards.h"
#include "cluster/rank_output.h"
#include "cluster/rank_process.h"
#include "cluster/restart_policy.h"
#include "cluster/lossy_output.h"
#include "cluster/signal_queue.h"
#include "cluster/store_socket.h"
#include "cluster/supervisor.h"

namespace ftrun {

/// SupervisedStart runs the ranks of one start until all of them have ended.
class SupervisedStart {
 public:
  /// Borrows all arguments. `restarts` is the number of restarts so far.
  SupervisedStart(const SupervisorOptions& options, SignalQueue& signals, int restarts,
                  const RestartSettings& restart);
  ~SupervisedStart() { signal_all(SIGKILL); }
  SupervisedStart(const SupervisedStart&) = delete;
  SupervisedStart& operator=(const SupervisedStart&) = delete;

  /// Runs the ranks, and returns how they ended.
  FailureSummary run();
  /// Returns whether a signal that asks to stop was received.
  bool asked_to_stop() const { return forwarded_signal_ != 0; }

 private:
  using Clock = std::chrono::steady_clock;

  struct LocalRank {
    int number = 0;
    RankProcess process;
    bool is_running = true;
    /// Says whether the rank had ended, or was ending, before it was asked to stop.
    bool ended_before_asked = false;
  };

  int first_rank() const { return options_.node * local_ranks_; }
  long running_ranks() const {
    return std::count_if(ranks_.begin(), ranks_.end(),
                         [](const LocalRank& r) { return r.is_running; });
  }

  void start_ranks();
  std::vector<std::string> environment_of(int local_rank, int port) const;
  void wait_for_event();
  void handle_signals();
  void forward_signal(int signal);
  void read_all_channels();
  void read_channel(LocalRank& rank, OwnedFd& fd, OutputStream stream);
  void read_reports();
  void reap();
  void record_end(LocalRank& rank, int status, const rusage& used);
  void stop_others();
  std::string shown_activity(const LocalRank& rank) const;
  bool holds_up_others(const LocalRank& rank) const;
  bool is_hang() const;
  void stop_after_failure();
  void enforce_deadline();
  void report_wait();
  void signal_all(int signal);

  const SupervisorOptions& options_;
  const int restarts_;
  const RestartSettings& restart_;
  const int local_ranks_;
  SignalQueue& signals_;
  RankOutput output_;
  LossyOutput lossy_output_;
  Pipe reports_ = make_pipe();
  LocalBoards boards_ = LocalBoards::make(local_ranks_);
  std::string report_text_;
  StoreSocket store_;
  /// The token of the ranks of this start: a process that does not know it cannot join their store.
  const std::string token_ = hex_text(random_bytes(32));
  std::vector<LocalRank> ranks_;
  std::vector<RankExit> exits_;
  std::vector<FailureReport> failures_;
  int64_t started_ns_ = unix_time_ns();
  std::optional<Clock::time_point> kill_at_;
  /// The time at which the rank for which others wait is killed.
  std::optional<Clock::time_point> hang_ends_at_;
  int forwarded_signal_ = 0;  // the first signal that was forwarded
  Clock::time_point forwarded_at_;
  std::optional<WaitNotice> stop_notice_;
  bool has_failed_ = false;   // a rank failed
  bool is_stopping_ = false;  // the ranks that were still running were asked to end
};

}  // namespace ftrun
