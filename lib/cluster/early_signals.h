#pragma once

namespace ftrun {

/// From now on, before training begins: SIGUSR1 ends the process with 75 (nothing is lost, it wants
/// to be started again) instead of killing it, and neither a closed pipe behind our output nor a
/// limit on file sizes kills it: writing then fails with an error that can be told. What stops a
/// run is heard, though whoever started us has it blocked, and though we are the first process of a
/// container, to which the kernel delivers only signals that have a handler.
void end_at_once_on_signals();

}  // namespace ftrun
