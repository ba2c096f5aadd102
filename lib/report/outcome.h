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

/// Which launch a run.json must come from to be written to.
struct LaunchMark {
  /// FTRUN_SUPERVISOR of its ranks: the supervisor's process id.
  int64_t supervisor = 0;
  /// When the ranks were started, seconds since 1970.
  int64_t started = 0;
};

/// Writes the failure to the run.json at `path` if that launch wrote the file, and returns true.
/// Leaves alone a file of an earlier run, or of another that holds the folder: ranks that were
/// refused before training wrote none. Error when the file cannot be read or written.
bool note_failure(const std::string& path, const LaunchMark& launch, const FailedRun& failure);

}  // namespace ftrun
