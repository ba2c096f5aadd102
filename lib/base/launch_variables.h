#pragma once

namespace ftrun {

/// The environment variables that ftrun sets for the processes that it starts, and that these read.
namespace launch_variables {

/// All of the variables begin with this prefix. They are not passed on to the user's own programs.
inline constexpr const char* kPrefix = "FTRUN_";

/// The process id of the supervisor that started a rank.
inline constexpr const char* kSupervisor = "FTRUN_SUPERVISOR";
/// The number of restarts so far.
inline constexpr const char* kRestart = "FTRUN_RESTART";
/// File descriptors: the pipe to which a rank reports its failure, its board, and the socket of the
/// store that rank 0 serves.
inline constexpr const char* kStatusFd = "FTRUN_STATUS_FD";
inline constexpr const char* kBoardFd = "FTRUN_BOARD_FD";
inline constexpr const char* kStoreFd = "FTRUN_STORE_FD";
/// The secret that the ranks of a job share; users of several nodes set it too.
inline constexpr const char* kToken = "FTRUN_TOKEN";
/// Says that the supervisor's output is a terminal; only rank 0 has this variable.
inline constexpr const char* kTerminal = "FTRUN_TERMINAL";
/// The value of --resume for the ranks of a restart; "" at the first start.
inline constexpr const char* kResume = "FTRUN_RESUME";
/// The ranks that were removed from the run, numbered as at the first start, and why.
inline constexpr const char* kRemovedRanks = "FTRUN_REMOVED_RANKS";
inline constexpr const char* kRemovedReason = "FTRUN_REMOVED_REASON";
/// The name of torchrun's launch, which may restart the ranks. It is not an environment variable: a
/// run's manifest records it together with those.
inline constexpr const char* kAgent = "FTRUN_AGENT";

}  // namespace launch_variables
}  // namespace ftrun
