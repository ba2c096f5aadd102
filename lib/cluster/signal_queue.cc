#include "cluster/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/limit_remedies.h"
#include "cluster/failure_summary.h"

namespace ftrun {
namespace {

/// Lists the signals that are forwarded to the ranks. A lost terminal (SIGHUP) stops them as
/// SIGTERM does, unless the supervisor was started with SIGHUP ignored (nohup).
std::vector<int> forwarded_signals() {
  std::vector<int> signals = {SIGINT, SIGTERM, SIGUSR1};
  if (!inherits_ignored(SIGHUP)) signals.push_back(SIGHUP);
  return signals;
}

}  // namespace

SignalQueue::SignalQueue() {
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

SignalQueue::~SignalQueue() {
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
}

int SignalQueue::next_signal() {
  signalfd_siginfo info{};
  const ssize_t got = ::read(fd_.get(), &info, sizeof info);
  return got == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace ftrun
