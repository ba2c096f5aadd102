#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "report/manifest.h"

namespace ftrun {

/// FailedRun says how a failed run ended, as the supervisor of its ranks knows it: rank 0, which
/// keeps run.json, may have seen no more than that a peer was lost, or have been killed itself.
struct FailedRun {
  int64_t exit_code = 0;
  /// Rank that was the cause.
  int64_t rank = 0;
  std::string reason;
};

/// Recorded with the environment where torchrun started the ranks: what they call its launch, which
/// may start them again.
inline constexpr const char* kAgentVariable = "FTRUN_AGENT";

/// LaunchMark says which launch a run.json must come from to be written to.
struct LaunchMark {
  /// FTRUN_SUPERVISOR of its ranks: the id of the process that started them.
  int64_t supervisor = 0;
  /// The time when the ranks were first started, seconds since 1970.
  int64_t started = 0;
  /// The time when they were started last, and the number of that start.
  int64_t attempt = 0;
  RanksOfStart ranks = {};
};

/// Says whether that launch wrote the run.json at `path`; false if there is none. Error when it
/// cannot be read.
bool has_begun(const std::string& path, const LaunchMark& launch);
/// Says so of ranks that torchrun starts.
bool began_by_agent(const std::string& path, const std::string& agent);

/// Writes the failure to the run.json at `path` if that launch wrote the file, and returns true.
/// If the last start of the ranks had not come so far as to write it, the failure before becomes
/// a restart of its own. Leaves alone a file of an earlier run, or of another that holds the
/// folder: ranks that were refused before training wrote none. Error when the file cannot be read
/// or written.
bool note_failure(const std::string& path, const LaunchMark& launch, const FailedRun& failure,
                  FileSystem& files = posix_files());

/// LaunchRecord is what the supervisor of a launch knows of its run.json, and writes to it.
class LaunchRecord {
 public:
  enum class Begun { kNo, kYes, kUnreadable };

  /// Begins the record of a launch that has not started any rank. `files` writes run.json.
  LaunchRecord(std::string path, const LaunchMark& launch, FileSystem& files = posix_files());

  /// Ranks are started again, at that time (seconds since 1970).
  void note_start(int64_t attempt, const RanksOfStart& ranks);
  /// Looks whether the launch has come to write run.json; then the failure goes into the file. What
  /// the disk refuses is logged: it may be the failure itself.
  void note(const FailedRun& failure);
  /// Says how far the launch had begun at the last failure; a launch that has begun has done so for
  /// good.
  Begun begun() const { return begun_; }

 private:
  const std::string path_;
  LaunchMark launch_;
  FileSystem& files_;
  Begun begun_ = Begun::kNo;
};

}  // namespace ftrun
