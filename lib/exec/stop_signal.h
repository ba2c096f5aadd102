#pragma once

#include <cstdint>

namespace ftrun {

/// Catches SIGINT, SIGTERM, SIGUSR1 and, unless it is inherited ignored, SIGHUP from now on: the
/// first one is remembered, so that the step can be finished and saved; a second one (ends_at_once)
/// ends the process at once with its stop_exit_code().
void catch_stop_signals();

/// Everything is done: a late signal has nothing left to stop.
void ignore_stop_signals();

/// The signal that asked this process to stop, or 0.
int stop_signal();

/// Ranks vote on stopping with their step's loss: each adds its vote, and all see the same sum.
double stop_vote(int signal);
/// The signal that the votes stand for (SIGUSR1 before SIGTERM before SIGHUP before SIGINT), or 0.
int voted_signal(double votes);

/// "SIGTERM".
const char* signal_name(int signal);

}  // namespace ftrun
