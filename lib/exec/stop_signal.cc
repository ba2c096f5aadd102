#include "exec/stop_signal.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <ctime>

#include "cluster/failure_summary.h"

namespace ftrun {
namespace {

/// The first signal and when it came, in milliseconds, as one number: milliseconds * 256 + signal.
std::atomic<int64_t> caught{0};

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // one of the few calls a handler may make
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void on_signal(int signal) {
  const int64_t this_one = now_ms() * 256 + signal;
  int64_t first = 0;
  if (caught.compare_exchange_strong(first, this_one)) return;
  if (ends_at_once(static_cast<int>(first % 256), signal, this_one / 256 - first / 256))
    _exit(stop_exit_code(signal));
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
constexpr std::array<Vote, 4> kVotes{
    {{SIGINT, 1.0}, {SIGHUP, 0x1p20}, {SIGTERM, 0x1p40}, {SIGUSR1, 0x1p60}}};

}  // namespace

void catch_stop_signals() {
  for (const Vote& vote : kVotes)
    if (vote.signal != SIGHUP || !inherits_ignored(SIGHUP)) handle(vote.signal, on_signal);
}

void ignore_stop_signals() {
  for (const Vote& vote : kVotes) handle(vote.signal, SIG_IGN);
}

int stop_signal() {
  return static_cast<int>(caught.load() % 256);
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
    case SIGHUP:
      return "SIGHUP";
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

}  // namespace ftrun
