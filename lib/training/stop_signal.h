#pragma once

#include "engine/votes.h"

namespace ftrun {

/// Catches SIGINT, SIGTERM, SIGUSR1 and SIGHUP from now on (SIGHUP only if the process did not
/// inherit it as ignored). The first signal is remembered, so that the step can be finished and
/// saved. A second signal (ends_at_once) ends the process immediately with its stop_exit_code().
void catch_stop_signals();

/// Ignores stop signals from now on. Called when all work is done and a late signal has nothing to
/// stop.
void ignore_stop_signals();

/// Returns the signal that asked this process to stop, or 0.
int stop_signal();

/// Adds the vote of a rank that has received `signal`; adds none if it is 0.
void add_stop_vote(int signal, Votes& votes);
/// Returns the signal that the votes of all ranks select (SIGUSR1 before SIGTERM before SIGHUP
/// before SIGINT), or 0.
int voted_signal(const Votes& votes);

/// Returns the name of a signal, such as "SIGTERM".
const char* signal_name(int signal);

}  // namespace ftrun
