#include "cluster/supervised_start.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/launch_variables.h"
#include "base/limit_remedies.h"
#include "base/log.h"
#include "base/text.h"
#include "base/uninterrupted.h"
#include "cluster/peers.h"
#include "cluster/rank_state.h"

namespace ftrun {
namespace {

/// The time between SIGTERM and SIGKILL if a rank hangs or is stopped.
constexpr std::chrono::milliseconds kGraceOfHang{1000};
/// The interval of checks whether to log a wait for ranks that were asked to stop.
constexpr std::chrono::milliseconds kLookAtWaits{500};

/// Returns whether a child has ended, though it has not been reaped yet.
bool has_ended(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

}  // namespace

SupervisedStart::SupervisedStart(const SupervisorOptions& options, SignalQueue& signals,
                                 int restarts, const RestartSettings& restart)
    : options_(options),
      restarts_(restarts),
      restart_(restart),
      local_ranks_(restart.local_ranks > 0 ? restart.local_ranks : options.local_ranks),
      signals_(signals),
      output_(
          {.first_rank = first_rank(),
           .ranks = local_ranks_,
           .terminal = options.terminal,
           .write = options.write
                        ? options.write
                        : [this](OutputStream stream,
                                 std::string_view text) { lossy_output_.write(stream, text); }}),
      lossy_output_({.is_ending = [this] {
        handle_signals();
        return forwarded_signal_ != 0 || is_stopping_;
      }}) {}

FailureSummary SupervisedStart::run() {
  start_ranks();
  while (running_ranks() > 0) {
    wait_for_event();
    handle_signals();
    reap();
    read_all_channels();  // including the last output of the ranks that have ended
    stop_after_failure();
    enforce_deadline();
    report_wait();
  }
  read_all_channels();
  for (LocalRank& rank : ranks_) output_.finish(rank.number);
  FailureSummary summary = summarize_failures({.exits = exits_,
                                               .reports = failures_,
                                               .started_ns = started_ns_,
                                               .forwarded_signal = forwarded_signal_,
                                               .log_of = options_.log_of});
  // Lines that were dropped after the last shown line are reported here, because no later line
  // reports them.
  if (const int64_t lines = lossy_output_.dropped_lines(); lines > 0 && !summary.text.empty())
    summary.text += cat("\n  before this ", lines, lines == 1 ? " line was" : " lines were",
                        " dropped because the output was blocked; see the ranks' logs");
  return summary;
}

std::vector<std::string> SupervisedStart::environment_of(int local_rank, int port) const {
  const int rank = first_rank() + local_rank;
  std::vector<std::string> variables = restart_.environment;  // the first value of a name counts
  variables.insert(variables.end(), options_.environment.begin(), options_.environment.end());
  const auto set = [&variables](std::string_view name, const auto& value) {
    variables.push_back(cat(name, "=", value));
  };
  set("RANK", rank);
  set("WORLD_SIZE", options_.nodes * local_ranks_);
  set("LOCAL_RANK", local_rank);
  set("LOCAL_WORLD_SIZE", local_ranks_);
  set("GROUP_RANK", options_.node);
  set("GROUP_WORLD_SIZE", options_.nodes);
  set("MASTER_ADDR", options_.master_addr);
  set("MASTER_PORT", port);
  set(launch_variables::kSupervisor, ::getpid());
  set(launch_variables::kRestart, restarts_);
  set(launch_variables::kStatusFd, reports_.writer.get());
  set(launch_variables::kBoardFd, boards_.fd());
  if (store_.fd) set(launch_variables::kToken, token_);
  if (rank == 0 && store_.fd) set(launch_variables::kStoreFd, store_.fd.get());
  if (rank == 0 && options_.terminal[0]) set(launch_variables::kTerminal, 1);
  return variables;
}

void SupervisedStart::start_ranks() {
  const bool own_store = options_.nodes == 1 && options_.master_port == 0;
  if (own_store) store_ = bind_store_socket();
  const int port = own_store ? store_.port : options_.master_port;
  ::fcntl(reports_.reader.get(), F_SETFL, O_NONBLOCK);
  ranks_.reserve(static_cast<size_t>(local_ranks_));
  std::vector<std::string> arguments = options_.arguments;
  arguments.insert(arguments.end(), restart_.arguments.begin(), restart_.arguments.end());
  for (int local = 0; local < local_ranks_; ++local) {
    RankCommand command{.main = [&] { return options_.rank_main(arguments); }};
    command.environment = environment_of(local, port);
    command.inherited_fds = {reports_.writer.get(), boards_.fd()};
    command.blocked_signals = signals_.original_mask();
    if (local == 0 && own_store) command.inherited_fds.push_back(store_.fd.get());
    LocalRank rank{.number = first_rank() + local, .process = start_rank_process(command)};
    ::fcntl(rank.process.out.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(rank.process.err.get(), F_SETFL, O_NONBLOCK);
    ranks_.push_back(std::move(rank));
  }
  // Only rank 0 may hold the socket, so that connections fail once rank 0 is gone.
  store_.fd.reset();
  reports_.writer.reset();
}

void SupervisedStart::wait_for_event() {
  std::vector<pollfd> descriptors = {{signals_.fd(), POLLIN, 0},
                                     {reports_.reader.get(), POLLIN, 0}};
  for (const LocalRank& rank : ranks_) {
    descriptors.push_back({rank.process.out.get(), POLLIN, 0});  // poll skips closed ones (-1)
    descriptors.push_back({rank.process.err.get(), POLLIN, 0});
  }
  int timeout_ms =
      stop_notice_ ? static_cast<int>(std::min(kLookAtWaits, options_.notices.first_delay).count())
                   : -1;
  if (const auto next = kill_at_ ? kill_at_ : hang_ends_at_) {
    const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
    const auto until_next = static_cast<int>(std::max<int64_t>(remaining.count(), 0));
    timeout_ms = timeout_ms < 0 ? until_next : std::min(timeout_ms, until_next);
  }
  ::poll(descriptors.data(), descriptors.size(), timeout_ms);
}

void SupervisedStart::handle_signals() {
  while (const int signal = signals_.next_signal()) {
    if (signal != SIGCHLD) forward_signal(signal);
  }
}

void SupervisedStart::forward_signal(int signal) {
  if (forwarded_signal_ != 0) {
    const auto since =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - forwarded_at_);
    if (!asks_to_end_at_once(forwarded_signal_, signal, since.count())) return;
    is_stopping_ = true;
    signal_all(SIGKILL);
    log_warning("second signal: the ranks are killed");  // last, because the terminal may block
    return;
  }
  forwarded_signal_ = signal;
  forwarded_at_ = Clock::now();
  WaitNoticeOptions notices = options_.notices;
  notices.report = [this](const std::string& line) {
    output_.write_own(OutputStream::kErr, "notice: " + line);
  };
  stop_notice_.emplace(notices, forwarded_at_);
  for (const LocalRank& rank : ranks_) {
    if (rank.is_running) ::kill(rank.process.pid, signal);
  }
}

/// Reads the available bytes, at most as many as a pipe holds, so that a rank that writes without
/// pause does not keep the supervisor from handling signals.
void SupervisedStart::read_channel(LocalRank& rank, OwnedFd& fd, OutputStream stream) {
  char buffer[16 * 1024];
  for (int reads = 0; fd && reads < 8; ++reads) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got > 0) {
      output_.feed(rank.number, stream, {buffer, static_cast<size_t>(got)});
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      fd.reset();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void SupervisedStart::read_reports() {
  char buffer[4096];
  ssize_t got = 0;
  while (reports_.reader && (got = ::read(reports_.reader.get(), buffer, sizeof buffer)) > 0)
    report_text_.append(buffer, static_cast<size_t>(got));
  if (got == 0) reports_.reader.reset();
  size_t end = 0;
  while ((end = report_text_.find('\n')) != std::string::npos) {
    if (auto report = parse_failure_line(report_text_.substr(0, end)))
      failures_.push_back(std::move(*report));
    report_text_.erase(0, end + 1);
  }
}

void SupervisedStart::read_all_channels() {
  for (LocalRank& rank : ranks_) {
    read_channel(rank, rank.process.out, OutputStream::kOut);
    read_channel(rank, rank.process.err, OutputStream::kErr);
  }
  read_reports();
}

void SupervisedStart::reap() {
  for (LocalRank& rank : ranks_) {
    if (!rank.is_running || !has_ended(rank.process.pid)) continue;
    // The processes that the rank itself has started are killed before the rank is reaped:
    // afterwards its process id may belong to another process.
    ::kill(-rank.process.pid, SIGKILL);
    int status = 0;
    rusage used{};
    uninterrupted([&] { return ::wait4(rank.process.pid, &status, 0, &used); });
    record_end(rank, status, used);
  }
}

void SupervisedStart::record_end(LocalRank& rank, int status, const rusage& used) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  rank.is_running = false;
  RankExit rank_exit{.rank = rank.number,
                     .unix_ns = unix_time_ns(),
                     .was_asked_to_stop = is_stopping_ && !rank.ended_before_asked,
                     .activity = shown_activity(rank),
                     .cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime),
                     .cpu_seconds_limit = cpu_seconds_limit()};
  if (WIFSIGNALED(status)) {
    rank_exit.signal = WTERMSIG(status);
    rank_exit.exit_code = 128 + rank_exit.signal;
  } else {
    rank_exit.exit_code = WEXITSTATUS(status);
  }
  has_failed_ |= !exited_as_requested(rank_exit.exit_code, rank_exit.signal, forwarded_signal_);
  exits_.push_back(rank_exit);
}

/// Returns the activity that a rank showed last.
std::string SupervisedStart::shown_activity(const LocalRank& rank) const {
  const BoardTable* table = boards_.find_table(rank.number, rank.process.pid);
  return table == nullptr ? "" : activity_text(read_state(*table));
}

/// Returns whether other ranks waited for this rank until they timed out, because it is late or
/// stopped. A rank that has ended, or that reported its own failure, does not count, regardless of
/// the reports of the others.
bool SupervisedStart::holds_up_others(const LocalRank& rank) const {
  bool blamed = false, failed = false;
  for (const FailureReport& report : failures_) {
    blamed |=
        report.culprit == rank.number && report.exit_code == static_cast<int>(ExitCode::kPeerLost);
    failed |= report.rank == rank.number && report.culprit < 0;
  }
  return blamed && !failed && rank.is_running && !has_ended(rank.process.pid);
}

bool SupervisedStart::is_hang() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [this](const LocalRank& r) { return holds_up_others(r); });
}

/// Stops the other ranks after one failed. A running rank that is blamed for the failure first gets
/// `time_to_report`, unless a signal has stopped it. It may be about to report its own failure, or
/// it was killed: its peers notice that before its last thread has ended, so before it can be
/// reaped here. The decision depends on the ranks' reports and not on their ends: a rank that has
/// reported a hang may be unable to exit, because it waits for the store of a stopped rank 0.
void SupervisedStart::stop_after_failure() {
  if (is_stopping_ || !is_hang()) {
    hang_ends_at_.reset();
    if (has_failed_ && !is_stopping_) stop_others();
    return;
  }
  if (!hang_ends_at_) hang_ends_at_ = Clock::now() + options_.time_to_report;
  const bool stopped = std::any_of(ranks_.begin(), ranks_.end(), [this](const LocalRank& r) {
    return holds_up_others(r) && is_stopped(r.process.pid);
  });
  if (Clock::now() < *hang_ends_at_ && !stopped) return;
  hang_ends_at_.reset();
  stop_others();
}

void SupervisedStart::stop_others() {
  is_stopping_ = true;
  const bool stopped = std::any_of(ranks_.begin(), ranks_.end(), [](const LocalRank& r) {
    return r.is_running && is_stopped(r.process.pid);
  });
  // A rank that waited for a hanging rank has nothing to finish, so it gets less time.
  kill_at_ = Clock::now() + (stopped || is_hang() ? std::min(options_.grace_period, kGraceOfHang)
                                                  : options_.grace_period);
  for (LocalRank& rank : ranks_) {
    if (!rank.is_running) continue;
    rank.ended_before_asked = is_gone(rank.process.pid);
    // A stopped rank does not receive SIGTERM. A rank for which the others have waited until their
    // timeout gets no more time.
    if (holds_up_others(rank) || is_stopped(rank.process.pid))
      ::kill(-rank.process.pid, SIGKILL);
    else
      ::kill(rank.process.pid, SIGTERM);
  }
}

void SupervisedStart::enforce_deadline() {
  if (!kill_at_ || Clock::now() < *kill_at_) return;
  kill_at_.reset();
  signal_all(SIGKILL);
}

/// Logs a wait for ranks that were asked to stop: they finish their step and save, which may take a
/// long time.
void SupervisedStart::report_wait() {
  if (!stop_notice_ || running_ranks() == 0) return;
  stop_notice_->poll([&](const std::string& waited) {
    std::vector<std::string> ranks;
    for (const LocalRank& rank : ranks_) {
      if (!rank.is_running) continue;
      const std::string what = shown_activity(rank);
      ranks.push_back(cat("rank ", rank.number,
                          is_stopped(rank.process.pid) ? " is stopped"
                          : what.empty()               ? ""
                                                       : cat(" is in ", what)));
    }
    return cat("SIG", ::sigabbrev_np(forwarded_signal_), " was received ", waited,
               " ago: waiting for the ranks to finish their step and save (", join(ranks, "; "),
               "); a second signal ends them at once, without saving");
  });
}

void SupervisedStart::signal_all(int signal) {
  for (const LocalRank& rank : ranks_) {
    if (rank.is_running) ::kill(-rank.process.pid, signal);
  }
}

}  // namespace ftrun
