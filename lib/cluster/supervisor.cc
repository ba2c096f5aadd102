#include "cluster/supervisor.h"

#include <poll.h>

#include <chrono>
#include <csignal>
#include <cstring>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster/rank_process.h"
#include "cluster/signal_queue.h"
#include "cluster/supervised_start.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

/// RestartLoop runs the starts of a run, one after another, until one ends well, the run is
/// stopped, or it is abandoned.
class RestartLoop {
 public:
  explicit RestartLoop(const SupervisorOptions& options)
      : options_(options), policy_(options.restarts, options.on_restart) {}

  int run() {
    while (true) {
      SupervisedStart start(options_, signals_, restarts_, next_start_);
      const FailureSummary summary = start.run();
      if (summary.rank < 0) return summary.exit_code;
      if (options_.on_failure) options_.on_failure(summary);
      const RestartDecision decision =
          start.asked_to_stop() ? RestartDecision() : decide_restart(summary);
      if (!decision.delay) return log_final_failure(summary, decision);
      prepare_restart(summary, decision);
      if (const int signal = wait_for_signal(*decision.delay)) return log_stop(signal);
    }
  }

 private:
  /// Decides whether the ranks are restarted. A failure that would occur again is not counted, nor
  /// is its last checkpoint looked for.
  RestartDecision decide_restart(const FailureSummary& failure) {
    if (options_.restarts.max_restarts_without_progress == 0 || !may_succeed_on_restart(failure))
      return {};
    return policy_.decide(failure,
                          options_.newest_checkpoint_id ? options_.newest_checkpoint_id() : "");
  }

  /// Prepares the next start, and logs it.
  void prepare_restart(const FailureSummary& failure, const RestartDecision& decision) {
    ++restarts_;
    next_start_ = decision.restart;
    const double seconds = std::chrono::duration<double>(*decision.delay).count();
    log_warning(cat("restart ", restarts_, " (", decision.restarts_without_progress, " of ",
                    options_.restarts.max_restarts_without_progress,
                    " without a new checkpoint) in ", human_seconds(seconds), ", from ",
                    next_start_.checkpoint.empty() ? "the start" : next_start_.checkpoint,
                    ": rank ", failure.rank, ": ", first_line(failure.reason)));
  }

  /// Logs the failure. After restarts without a new checkpoint it logs the first failure, which the
  /// last one repeats. Returns the exit code of the logged failure.
  static int log_final_failure(const FailureSummary& last, const RestartDecision& decision) {
    if (!decision.repeated_failure) {
      log_error(last.text);
      return last.exit_code;
    }
    const FailureSummary& first = *decision.repeated_failure;
    log_error(cat(first.text, "\n  gave up after ",
                  count_text(decision.restarts_without_progress, "restart"),
                  " without a new checkpoint; the last failure: rank ", last.rank, ": ",
                  first_line(last.reason)));
    return first.exit_code;
  }

  /// Waits for `delay`, or until a signal asks to stop; returns that signal, or 0.
  int wait_for_signal(std::chrono::milliseconds delay) {
    const auto end = Clock::now() + delay;
    while (true) {
      while (const int signal = signals_.next_signal())
        if (signal != SIGCHLD) return signal;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (left.count() <= 0) return 0;
      pollfd descriptor{signals_.fd(), POLLIN, 0};
      ::poll(&descriptor, 1, static_cast<int>(left.count()));
    }
  }

  static int log_stop(int signal) {
    log_notice(cat("stopped by ", "SIG", ::sigabbrev_np(signal),
                   " before the restart; continue with --resume auto"));
    return stop_exit_code(signal);
  }

  const SupervisorOptions& options_;
  SignalQueue signals_;
  RestartPolicy policy_;
  int restarts_ = 0;
  /// The changes from the first start to the next start.
  RestartSettings next_start_;
};

}  // namespace

int run_supervisor(const SupervisorOptions& options) {
  require(options.local_ranks >= 1, "a supervisor needs at least one rank");
  warn_of_threads();
  return RestartLoop(options).run();
}

}  // namespace ftrun
