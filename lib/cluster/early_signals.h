#pragma once

namespace ftrun {

/// Sets the handling of signals until training begins. SIGUSR1 ends the process with exit code 75,
/// which asks for a restart (nothing is lost), instead of killing it. A closed pipe at our output,
/// or a limit on file sizes, does not kill the process: writing fails with an error that can be
/// reported. Signals that stop a run are received even if our parent process has blocked them, and
/// if we are the first process of a container, to which the kernel delivers only signals that have
/// a handler.
void end_at_once_on_signals();

}  // namespace ftrun
