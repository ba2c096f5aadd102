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
  if (!is_signal_ignored(SIGHUP)) signals.push_back(SIGHUP);
  return signals;
}

}  // namespace

SignalQueue::SignalQueue() {
  // SIGCHLD may have been inherited as ignored. The end of a rank would then not be reported, and
  // no rank could be waited for.
  struct sigaction default_action {};
  default_action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &default_action, &original_child_action_);
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : forwarded_signals()) sigaddset(&mask, signal);
  sigaddset(&mask, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &mask, &original_mask_);
  fd_ = OwnedFd(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_)
    throw Error(ExitCode::kEnvironment, cat("cannot create a signalfd: ", errno_text(errno)),
                kMoreFiles);
}

SignalQueue::~SignalQueue() {
  ::sigprocmask(SIG_SETMASK, &original_mask_, nullptr);
  ::sigaction(SIGCHLD, &original_child_action_, nullptr);
}

int SignalQueue::next_signal() {
  signalfd_siginfo info{};
  const ssize_t got = ::read(fd_.get(), &info, sizeof info);
  return got == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace ftrun
