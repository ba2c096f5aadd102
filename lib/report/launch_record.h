#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "report/run_manifest.h"

namespace ftrun {

/// FailedRun describes how a failed run ended, as the supervisor saw it. Rank 0, which writes
/// run.json, may only know that a peer was lost, or may have been killed itself.
struct FailedRun {
  int64_t exit_code = 0;
  /// The rank that caused the failure.
  int64_t rank = 0;
  std::string reason;
};

/// LaunchId identifies a launch. The supervisor may change only a run.json that this launch wrote.
struct LaunchId {
  /// The value of FTRUN_SUPERVISOR in the launch's ranks: the id of the process that started them.
  int64_t supervisor = 0;
  /// The time when the ranks were first started, in seconds since 1970.
  int64_t first_start_seconds = 0;
  /// The time of the latest start of the ranks, and the ranks of that start.
  int64_t latest_start_seconds = 0;
  RanksOfStart ranks = {};
};

/// Returns whether `launch` wrote the run.json at `path`; false if there is none. Throws an Error
/// when it cannot be read.
bool wrote_manifest(const std::string& path, const LaunchId& launch);
/// Returns whether the torchrun launch `launch` wrote the run.json at `path`.
bool torchrun_wrote_manifest(const std::string& path, const std::string& launch);

/// Writes the failure to the run.json at `path` and returns true, if `launch` wrote that file. If
/// the latest start of the ranks failed before it wrote the file, the previous failure is kept as a
/// separate restart. Does not change a file of an earlier run, or of another run that holds the
/// folder: ranks that were refused before training have written no file of their own. Throws an
/// Error if the file cannot be read or written.
bool record_failure(const std::string& path, const LaunchId& launch, const FailedRun& failure,
                    FileSystem& files = posix_files());

/// LaunchRecord records the failures of a launch in its run.json, on behalf of the supervisor.
class LaunchRecord {
 public:
  /// FoundManifest says which run.json was found at the latest failure: none of this launch, the
  /// one of this launch, or one that could not be read.
  enum class FoundManifest { kNone, kOurs, kUnreadable };

  /// Begins the record of a launch that has not started any rank. `files` writes run.json.
  LaunchRecord(std::string path, const LaunchId& launch, FileSystem& files = posix_files());

  /// Records that the ranks are restarted, at the time `start_seconds` (since 1970).
  void record_start(int64_t start_seconds, const RanksOfStart& ranks);
  /// Writes the failure to run.json if the launch has written that file. A disk error is only
  /// logged, because the disk may be what made the run fail.
  void record_failure(const FailedRun& failure);
  /// Returns which run.json was found at the latest failure. Once it is kOurs, it does not change.
  FoundManifest found_manifest() const { return found_manifest_; }

 private:
  const std::string path_;
  LaunchId launch_;
  FileSystem& files_;
  FoundManifest found_manifest_ = FoundManifest::kNone;
};

}  // namespace ftrun
