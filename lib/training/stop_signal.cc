#include "training/stop_signal.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <ctime>

#include "cluster/failure_summary.h"

namespace ftrun {
namespace {

/// The first signal and the time when it was received, combined in one number: milliseconds * 256 +
/// signal.
std::atomic<int64_t> caught_signal{0};

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // async-signal-safe
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void on_signal(int signal) {
  const int64_t this_one = now_ms() * 256 + signal;
  int64_t first = 0;
  if (caught_signal.compare_exchange_strong(first, this_one)) return;
  if (asks_to_end_at_once(static_cast<int>(first % 256), signal, this_one / 256 - first / 256))
    _exit(stop_exit_code(signal));
}

void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

struct StopSignal {
  int signal;
  RankFlag flag;
  const char* name;
};
/// The signals that stop a run, in order of precedence: if ranks received different signals, the
/// first in this list counts.
constexpr std::array<StopSignal, 4> kStopSignals{{{SIGUSR1, RankFlag::kRequeue, "SIGUSR1"},
                                                  {SIGTERM, RankFlag::kTerminate, "SIGTERM"},
                                                  {SIGHUP, RankFlag::kHangup, "SIGHUP"},
                                                  {SIGINT, RankFlag::kInterrupt, "SIGINT"}}};

}  // namespace

void catch_stop_signals() {
  for (const StopSignal& stop : kStopSignals)
    if (stop.signal != SIGHUP || !is_signal_ignored(SIGHUP)) set_handler(stop.signal, on_signal);
}

void ignore_stop_signals() {
  for (const StopSignal& stop : kStopSignals) set_handler(stop.signal, SIG_IGN);
}

int stop_signal() {
  return static_cast<int>(caught_signal.load() % 256);
}

void add_stop_flag(int signal, RankFlags& flags) {
  for (const StopSignal& stop : kStopSignals)
    if (stop.signal == signal) flags.add(stop.flag);
}

int stop_signal_of(const RankFlags& flags) {
  for (const StopSignal& stop : kStopSignals)
    if (flags.count_of(stop.flag) > 0) return stop.signal;
  return 0;
}

const char* signal_name(int signal) {
  for (const StopSignal& stop : kStopSignals)
    if (stop.signal == signal) return stop.name;
  return "a signal";
}

}  // namespace ftrun
