#pragma once

#include "engine/votes.h"

namespace ftrun {

/// Catches SIGINT, SIGTERM, SIGUSR1 and, unless the process inherited it ignored, SIGHUP from now
/// on. The first signal is remembered, so that the step can be finished and saved; a second one
/// (ends_at_once) ends the process at once with its stop_exit_code().
void catch_stop_signals();

/// Ignores stop signals once everything is done: a late signal has nothing to stop.
void ignore_stop_signals();

/// Returns the signal that asked this process to stop, or 0.
int stop_signal();

/// Adds the vote of a rank that has received `signal`; none where it is 0.
void add_stop_vote(int signal, Votes& votes);
/// Returns the signal that the votes of all ranks select (SIGUSR1 before SIGTERM before SIGHUP
/// before SIGINT), or 0.
int voted_signal(const Votes& votes);

/// Returns the name of a signal: "SIGTERM" and the like.
const char* signal_name(int signal);

}  // namespace ftrun
