#include "cluster/supervisor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/hmac.h"
#include "base/launch_variables.h"
#include "base/limit_remedies.h"
#include "base/log.h"
#include "base/loopback.h"
#include "base/owned_fd.h"
#include "base/text.h"
#include "base/uninterrupted.h"
#include "cluster/failure_report.h"
#include "cluster/local_boards.h"
#include "cluster/lossy_output.h"
#include "cluster/peers.h"
#include "cluster/rank_process.h"
#include "cluster/rank_state.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
/// The time between SIGTERM and SIGKILL if a rank hangs or is stopped.
constexpr std::chrono::milliseconds kGraceOfHang{1000};
/// The interval of checks whether to log a wait for ranks that were asked to stop.
constexpr std::chrono::milliseconds kLookAtWaits{500};

/// Lists the signals that are forwarded to the ranks. A lost terminal (SIGHUP) stops them as
/// SIGTERM does, unless the supervisor was started with SIGHUP ignored (nohup).
std::vector<int> forwarded_signals() {
  std::vector<int> signals = {SIGINT, SIGTERM, SIGUSR1};
  if (!inherits_ignored(SIGHUP)) signals.push_back(SIGHUP);
  return signals;
}

/// SignalQueue blocks the signals while it exists; they are read from a descriptor instead of
/// calling their handlers.
class SignalQueue {
 public:
  SignalQueue() {
    // SIGCHLD may have been inherited as ignored. The end of a rank would then not be reported, and
    // no rank could be waited for.
    struct sigaction waited {};
    waited.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &waited, &child_before_);
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int signal : forwarded_signals()) sigaddset(&wanted, signal);
    sigaddset(&wanted, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &wanted, &before_);
    fd_ = OwnedFd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_)
      throw Error(ExitCode::kEnvironment, cat("cannot create a signalfd: ", errno_text(errno)),
                  kMoreFiles);
  }
  ~SignalQueue() {
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    ::sigaction(SIGCHLD, &child_before_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }
  /// Returns the next signal, 0 if there is none.
  int next_signal() {
    signalfd_siginfo info{};
    const ssize_t got = ::read(fd_.get(), &info, sizeof info);
    return got == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_{};
  struct sigaction child_before_ {};
  OwnedFd fd_;
};

/// StoreSocket is a socket on 127.0.0.1 that already listens: ranks that connect before rank 0 is
/// ready wait in its queue instead of being refused.
struct StoreSocket {
  OwnedFd fd;
  int port = 0;
};

StoreSocket bind_store_socket() {
  check_loopback();
  StoreSocket store{OwnedFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (!store.fd || ::bind(store.fd.get(), raw, size) != 0 || ::listen(store.fd.get(), 512) != 0 ||
      ::getsockname(store.fd.get(), raw, &size) != 0)
    throw Error(ExitCode::kEnvironment,
                cat("cannot open a local socket for the rendezvous: ", errno_text(errno)),
                "bring the loopback interface up, or raise ulimit -n");
  store.port = ntohs(address.sin_port);
  return store;
}

/// Returns whether a child has ended, though it has not been reaped yet.
bool has_ended(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

/// Supervisor runs the ranks of one start until all of them have ended.
class Supervisor {
 public:
  /// Borrows all arguments. `restarts` is the number of restarts so far.
  Supervisor(const SupervisorOptions& options, SignalQueue& signals, int restarts,
             const RestartSettings& restart)
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
  ~Supervisor() { signal_all(SIGKILL); }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  FailureSummary run() {
    start_ranks();
    while (running_ranks() > 0) {
      wait_for_something();
      handle_signals();
      reap();
      read_everything();  // including the last output of the ranks that have ended
      stop_after_failure();
      enforce_deadline();
      report_wait();
    }
    read_everything();
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
  /// Returns whether a signal that asks to stop was received.
  bool asked_to_stop() const { return forwarded_signal_ != 0; }

 private:
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
  void wait_for_something();
  void handle_signals();
  void forward(int signal);
  void read_everything();
  void read_channel(LocalRank& rank, OwnedFd& fd, OutputStream stream);
  void read_reports();
  void reap();
  void record_end(LocalRank& rank, int status, const rusage& used);
  void stop_others();
  std::string text_of_activity(const LocalRank& rank) const;
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

std::vector<std::string> Supervisor::environment_of(int local_rank, int port) const {
  const int rank = first_rank() + local_rank;
  std::vector<std::string> all = restart_.environment;  // the first value of a name counts
  all.insert(all.end(), options_.environment.begin(), options_.environment.end());
  const auto set = [&all](std::string_view name, const auto& value) {
    all.push_back(cat(name, "=", value));
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
  return all;
}

void Supervisor::start_ranks() {
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
    command.inherited = {reports_.writer.get(), boards_.fd()};
    command.blocked = signals_.before();
    if (local == 0 && own_store) command.inherited.push_back(store_.fd.get());
    LocalRank rank{.number = first_rank() + local, .process = start_rank_process(command)};
    ::fcntl(rank.process.out.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(rank.process.err.get(), F_SETFL, O_NONBLOCK);
    ranks_.push_back(std::move(rank));
  }
  // Only rank 0 may hold the socket, so that connections fail once rank 0 is gone.
  store_.fd.reset();
  reports_.writer.reset();
}

void Supervisor::wait_for_something() {
  std::vector<pollfd> wanted = {{signals_.fd(), POLLIN, 0}, {reports_.reader.get(), POLLIN, 0}};
  for (const LocalRank& rank : ranks_) {
    wanted.push_back({rank.process.out.get(), POLLIN, 0});  // poll skips closed ones (-1)
    wanted.push_back({rank.process.err.get(), POLLIN, 0});
  }
  int timeout_ms =
      stop_notice_ ? static_cast<int>(std::min(kLookAtWaits, options_.notices.first).count()) : -1;
  if (const auto next = kill_at_ ? kill_at_ : hang_ends_at_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
    const auto until_next = static_cast<int>(std::max<int64_t>(left.count(), 0));
    timeout_ms = timeout_ms < 0 ? until_next : std::min(timeout_ms, until_next);
  }
  ::poll(wanted.data(), wanted.size(), timeout_ms);
}

void Supervisor::handle_signals() {
  while (const int signal = signals_.next_signal()) {
    if (signal != SIGCHLD) forward(signal);
  }
}

void Supervisor::forward(int signal) {
  if (forwarded_signal_ != 0) {
    const auto since =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - forwarded_at_);
    if (!ends_at_once(forwarded_signal_, signal, since.count())) return;
    is_stopping_ = true;
    signal_all(SIGKILL);
    log_warning("second signal: the ranks are killed");  // last, because the terminal may block
    return;
  }
  forwarded_signal_ = signal;
  forwarded_at_ = Clock::now();
  WaitNoticeOptions notices = options_.notices;
  notices.say = [this](const std::string& line) {
    output_.write_own(OutputStream::kErr, "notice: " + line);
  };
  stop_notice_.emplace(notices, forwarded_at_);
  for (const LocalRank& rank : ranks_) {
    if (rank.is_running) ::kill(rank.process.pid, signal);
  }
}

/// Reads the available bytes, at most as many as a pipe holds, so that a rank that writes without
/// pause does not keep the supervisor from handling signals.
void Supervisor::read_channel(LocalRank& rank, OwnedFd& fd, OutputStream stream) {
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

void Supervisor::read_reports() {
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

void Supervisor::read_everything() {
  for (LocalRank& rank : ranks_) {
    read_channel(rank, rank.process.out, OutputStream::kOut);
    read_channel(rank, rank.process.err, OutputStream::kErr);
  }
  read_reports();
}

void Supervisor::reap() {
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

void Supervisor::record_end(LocalRank& rank, int status, const rusage& used) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  rank.is_running = false;
  RankExit rank_exit{.rank = rank.number,
                     .unix_ns = unix_time_ns(),
                     .was_asked_to_stop = is_stopping_ && !rank.ended_before_asked,
                     .activity = text_of_activity(rank),
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
std::string Supervisor::text_of_activity(const LocalRank& rank) const {
  const BoardTable* table = boards_.find(rank.number, rank.process.pid);
  return table == nullptr ? "" : activity_text(read_state(*table));
}

/// Returns whether other ranks waited for this rank until they timed out, because it is late or
/// stopped. A rank that has ended, or that reported its own failure, does not count, regardless of
/// the reports of the others.
bool Supervisor::holds_up_others(const LocalRank& rank) const {
  bool blamed = false, failed = false;
  for (const FailureReport& report : failures_) {
    blamed |=
        report.culprit == rank.number && report.exit_code == static_cast<int>(ExitCode::kPeerLost);
    failed |= report.rank == rank.number && report.culprit < 0;
  }
  return blamed && !failed && rank.is_running && !has_ended(rank.process.pid);
}

bool Supervisor::is_hang() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [this](const LocalRank& r) { return holds_up_others(r); });
}

/// Stops the other ranks after one failed. A running rank that is blamed for the failure first gets
/// `time_to_report`, unless a signal has stopped it. It may be about to report its own failure, or
/// it was killed: its peers notice that before its last thread has ended, so before it can be
/// reaped here. The decision depends on the ranks' reports and not on their ends: a rank that has
/// reported a hang may be unable to exit, because it waits for the store of a stopped rank 0.
void Supervisor::stop_after_failure() {
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

void Supervisor::stop_others() {
  is_stopping_ = true;
  const bool stopped = std::any_of(ranks_.begin(), ranks_.end(), [](const LocalRank& r) {
    return r.is_running && is_stopped(r.process.pid);
  });
  // A rank that waited for a hanging rank has nothing to finish, so it gets less time.
  kill_at_ = Clock::now() +
             (stopped || is_hang() ? std::min(options_.grace, kGraceOfHang) : options_.grace);
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

void Supervisor::enforce_deadline() {
  if (!kill_at_ || Clock::now() < *kill_at_) return;
  kill_at_.reset();
  signal_all(SIGKILL);
}

/// Logs a wait for ranks that were asked to stop: they finish their step and save, which may take a
/// long time.
void Supervisor::report_wait() {
  if (!stop_notice_ || running_ranks() == 0) return;
  stop_notice_->poll([&](const std::string& waited) {
    std::vector<std::string> ranks;
    for (const LocalRank& rank : ranks_) {
      if (!rank.is_running) continue;
      const std::string what = text_of_activity(rank);
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

void Supervisor::signal_all(int signal) {
  for (const LocalRank& rank : ranks_) {
    if (rank.is_running) ::kill(-rank.process.pid, signal);
  }
}

/// Restarts runs the starts of a run, one after another, until one ends well, the run is stopped,
/// or it is abandoned.
class Restarts {
 public:
  explicit Restarts(const SupervisorOptions& options)
      : options_(options), policy_(options.restarts, options.on_restart) {}

  int run() {
    while (true) {
      Supervisor supervisor(options_, signals_, count_, next_);
      const FailureSummary summary = supervisor.run();
      if (summary.rank < 0) return summary.exit_code;
      if (options_.on_failure) options_.on_failure(summary);
      const RestartDecision decision =
          supervisor.asked_to_stop() ? RestartDecision() : decide(summary);
      if (!decision.delay) return give_up(summary, decision);
      prepare(summary, decision);
      if (const int signal = wait(*decision.delay)) return stopped_by(signal);
    }
  }

 private:
  /// Decides whether the ranks are restarted. A failure that would occur again is not counted, nor
  /// is its last checkpoint looked for.
  RestartDecision decide(const FailureSummary& failure) {
    if (options_.restarts.max_restarts_without_progress == 0 || !may_succeed_on_restart(failure))
      return {};
    return policy_.decide(failure,
                          options_.newest_checkpoint_id ? options_.newest_checkpoint_id() : "");
  }

  /// Prepares the next start, and logs it.
  void prepare(const FailureSummary& failure, const RestartDecision& decision) {
    ++count_;
    next_ = decision.restart;
    const double seconds = std::chrono::duration<double>(*decision.delay).count();
    log_warning(cat("restart ", count_, " (", decision.restarts_without_progress, " of ",
                    options_.restarts.max_restarts_without_progress,
                    " without a new checkpoint) in ", human_seconds(seconds), ", from ",
                    next_.checkpoint.empty() ? "the start" : next_.checkpoint, ": rank ",
                    failure.rank, ": ", first_line(failure.reason)));
  }

  /// Logs the failure. After restarts without a new checkpoint it logs the first failure, which the
  /// last one repeats. Returns the exit code of the logged failure.
  static int give_up(const FailureSummary& last, const RestartDecision& decision) {
    if (!decision.repeated) {
      log_error(last.text);
      return last.exit_code;
    }
    const FailureSummary& first = *decision.repeated;
    log_error(cat(first.text, "\n  gave up after ",
                  count_text(decision.restarts_without_progress, "restart"),
                  " without a new checkpoint; the last failure: rank ", last.rank, ": ",
                  first_line(last.reason)));
    return first.exit_code;
  }

  /// Waits for `delay`, or until a signal asks to stop; returns that signal, or 0.
  int wait(std::chrono::milliseconds delay) {
    const auto end = Clock::now() + delay;
    while (true) {
      while (const int signal = signals_.next_signal())
        if (signal != SIGCHLD) return signal;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (left.count() <= 0) return 0;
      pollfd wanted{signals_.fd(), POLLIN, 0};
      ::poll(&wanted, 1, static_cast<int>(left.count()));
    }
  }

  static int stopped_by(int signal) {
    log_notice(cat("stopped by ", "SIG", ::sigabbrev_np(signal),
                   " before the restart; continue with --resume auto"));
    return stop_exit_code(signal);
  }

  const SupervisorOptions& options_;
  SignalQueue signals_;
  RestartPolicy policy_;
  int count_ = 0;
  /// The changes from the first start to the next start.
  RestartSettings next_;
};

}  // namespace

int run_supervisor(const SupervisorOptions& options) {
  require(options.local_ranks >= 1, "a supervisor needs at least one rank");
  warn_of_threads();
  return Restarts(options).run();
}

}  // namespace ftrun
