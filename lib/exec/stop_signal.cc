#include "exec/stop_signal.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>

#include "base/error.h"

namespace ftrun {
namespace {

std::atomic<int> caught{0};

void on_signal(int signal) {
  int none = 0;
  if (!caught.compare_exchange_strong(none, signal)) _exit(128 + signal);
}

void on_early_requeue(int) {
  _exit(static_cast<int>(ExitCode::kRequeue));
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

/// Weights far enough apart that the votes of a million ranks do not run into each other.
struct Vote {
  int signal;
  double weight;
};
constexpr std::array<Vote, 3> kVotes{
    {{SIGINT, 1.0}, {SIGTERM, 1048576.0}, {SIGUSR1, 1099511627776.0}}};

}  // namespace

void end_at_once_on_signals() {
  handle(SIGUSR1, on_early_requeue);
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
}

void catch_stop_signals() {
  for (const Vote& vote : kVotes) handle(vote.signal, on_signal);
}

void ignore_stop_signals() {
  for (const Vote& vote : kVotes) handle(vote.signal, SIG_IGN);
}

int stop_signal() {
  return caught.load();
}

double stop_vote(int signal) {
  for (const Vote& vote : kVotes)
    if (vote.signal == signal) return vote.weight;
  return 0.0;
}

int voted_signal(double votes) {
  for (size_t i = kVotes.size(); i-- > 0;)
    if (votes >= kVotes[i].weight) return kVotes[i].signal;
  return 0;
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "a signal";
  }
}

int stop_exit_code(int signal) {
  return signal == SIGUSR1 ? static_cast<int>(ExitCode::kRequeue) : 128 + signal;
}

}  // namespace ftrun
