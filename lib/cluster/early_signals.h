#pragma once

namespace ftrun {

/// Sets the handling of signals until training begins. SIGUSR1 ends the process with exit code 75,
/// which asks for a restart (nothing is lost), instead of killing it. A closed pipe at stdout or
/// stderr, or a limit on file sizes, does not kill the process: the write fails with an error that
/// can be reported. Signals that stop a run are received even if the parent process has blocked
/// them, and even if this process is the first of a container, to which the kernel delivers only
/// signals that have a handler.
void install_early_signal_handlers();

}  // namespace ftrun
