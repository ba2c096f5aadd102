#include "cluster/early_signals.h"

#include <unistd.h>

#include <csignal>

#include "base/error.h"
#include "cluster/failure_summary.h"

namespace ftrun {
namespace {

void on_early_requeue(int) {
  _exit(static_cast<int>(ExitCode::kRequeue));
}

/// The id of the first process of a container. The kernel drops signals to this process for which
/// it has no handler.
constexpr pid_t kFirstProcess = 1;

void on_early_stop(int signal) {
  if (::getpid() == kFirstProcess) _exit(stop_exit_code(signal));
  // A rank inherits this handler from its supervisor. With the default action restored, the signal
  // kills the rank when the handler returns.
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void install_early_signal_handlers() {
  std::signal(SIGUSR1, on_early_requeue);
  if (::getpid() == kFirstProcess) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP})
      if (!is_signal_ignored(signal)) std::signal(signal, on_early_stop);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  sigset_t stops;
  sigemptyset(&stops);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&stops, signal);
  ::sigprocmask(SIG_UNBLOCK, &stops, nullptr);
}

}  // namespace ftrun
