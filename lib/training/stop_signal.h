#pragma once

#include "engine/rank_flags.h"

namespace ftrun {

/// Catches SIGINT, SIGTERM, SIGUSR1 and SIGHUP from now on (SIGHUP only if the process did not
/// inherit it as ignored). The first signal is remembered, so that the step can be finished and
/// saved. A second signal (asks_to_end_at_once) ends the process immediately with its
/// stop_exit_code().
void catch_stop_signals();

/// Ignores stop signals from now on. Called when all work is done and a late signal has nothing to
/// stop.
void ignore_stop_signals();

/// Returns the signal that asked this process to stop, or 0.
int stop_signal();

/// Sets the flag of a rank that has received `signal`; sets none if it is 0.
void add_stop_flag(int signal, RankFlags& flags);
/// Returns the signal on which all ranks stop, from the flags of all (SIGUSR1 before SIGTERM before
/// SIGHUP before SIGINT), or 0.
int stop_signal_of(const RankFlags& flags);

/// Returns the name of a signal, such as "SIGTERM".
const char* signal_name(int signal);

}  // namespace ftrun
