#include "cluster/early_signals.h"

#include <unistd.h>

#include <csignal>

#include "base/error.h"

namespace ftrun {
namespace {

void on_early_requeue(int) {
  _exit(static_cast<int>(ExitCode::kRequeue));
}

}  // namespace

void end_at_once_on_signals() {
  std::signal(SIGUSR1, on_early_requeue);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  sigset_t stops;
  sigemptyset(&stops);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&stops, signal);
  ::sigprocmask(SIG_UNBLOCK, &stops, nullptr);
}

}  // namespace ftrun
