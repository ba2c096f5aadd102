#pragma once

#include <cstdint>
#include <string>

namespace ftrun {

/// How a failed run ended, as the supervisor of its ranks knows it: rank 0, which keeps run.json, may
/// have seen no more than that a peer was lost, or have been killed itself.
struct FailedRun {
  int64_t exit_code = 0;
  /// Rank that was the cause.
  int64_t rank = 0;
  std::string reason;
};

/// Of a launcher that starts failed ranks again and gives them no name of the launch: the id of the process that starts
/// them. Recorded with the environment.
inline constexpr const char* kAgentVariable = "FTRUN_AGENT";

/// Which launch a run.json must come from to be written to.
struct LaunchMark {
  /// FTRUN_SUPERVISOR of its ranks, or FTRUN_AGENT: the id of the process that started them.
  int64_t supervisor = 0;
  /// When the ranks were first started, seconds since 1970.
  int64_t started = 0;
  /// When they were started last.
  int64_t attempt = 0;
};

/// Whether that launch wrote the run.json at `path`; false where there is none. Error when it cannot be read.
bool has_begun(const std::string& path, const LaunchMark& launch);

/// Writes the failure to the run.json at `path` if that launch wrote the file, and returns true. Where the last start
/// of the ranks had not come so far as to write it, the failure before becomes a restart of its own.
/// Leaves alone a file of an earlier run, or of another that holds the folder: ranks that were
/// refused before training wrote none. Error when the file cannot be read or written.
bool note_failure(const std::string& path, const LaunchMark& launch, const FailedRun& failure);

}  // namespace ftrun
