#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "report/manifest.h"

namespace ftrun {

/// FailedRun says how a failed run ended, as the supervisor of its ranks knows it: rank 0, which
/// keeps run.json, may have seen only that a peer was lost, or may have been killed itself.
struct FailedRun {
  int64_t exit_code = 0;
  /// Rank that was the cause.
  int64_t rank = 0;
  std::string reason;
};

/// The variable recorded with the environment where torchrun started the ranks: their name for its
/// launch, which may start them again.
inline constexpr const char* kAgentVariable = "FTRUN_AGENT";

/// LaunchMark identifies the launch that a run.json must come from to be written to.
struct LaunchMark {
  /// FTRUN_SUPERVISOR of its ranks: the id of the process that started them.
  int64_t supervisor = 0;
  /// The time when the ranks were first started, seconds since 1970.
  int64_t started = 0;
  /// The time when they were last started, and the ranks of that start.
  int64_t attempt = 0;
  RanksOfStart ranks = {};
};

/// Says whether `launch` wrote the run.json at `path`; false if there is none. Error when it cannot
/// be read.
bool has_begun(const std::string& path, const LaunchMark& launch);
/// Says the same for ranks that torchrun starts.
bool began_by_agent(const std::string& path, const std::string& agent);

/// Writes the failure to the run.json at `path` if `launch` wrote the file, and returns true. If
/// the last start of the ranks failed before it wrote the file, the previous failure becomes a
/// restart of its own. Does not touch the file of an earlier run, or of another run that holds the
/// folder: ranks that were refused before training wrote none. Error when the file cannot be read
/// or written.
bool note_failure(const std::string& path, const LaunchMark& launch, const FailedRun& failure,
                  FileSystem& files = posix_files());

/// LaunchRecord is what the supervisor of a launch knows of its run.json and writes to it.
class LaunchRecord {
 public:
  enum class Begun { kNo, kYes, kUnreadable };

  /// Begins the record of a launch that has not started any rank. `files` writes run.json.
  LaunchRecord(std::string path, const LaunchMark& launch, FileSystem& files = posix_files());

  /// Records that the ranks are started again, at the time `attempt` (seconds since 1970).
  void note_start(int64_t attempt, const RanksOfStart& ranks);
  /// Writes the failure to run.json if the launch has written that file. An error of the disk is
  /// only logged: it may be the failure itself.
  void note(const FailedRun& failure);
  /// Says whether the launch had begun at the last failure; a launch that has begun stays so.
  Begun begun() const { return begun_; }

 private:
  const std::string path_;
  LaunchMark launch_;
  FileSystem& files_;
  Begun begun_ = Begun::kNo;
};

}  // namespace ftrun
