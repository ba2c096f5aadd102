#include "report/outcome.h"

#include "base/file.h"
#include "report/manifest.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

bool is_of(const RunManifest& manifest, const LaunchMark& launch) {
  const auto supervisor = manifest.environment.find("FTRUN_SUPERVISOR");
  // Times as utc_text writes them are in order as text is.
  return supervisor != manifest.environment.end() &&
         supervisor->second == std::to_string(launch.supervisor) &&
         manifest.started >= utc_text(launch.started);
}

/// A manifest says what happened; what to do about it was told on the screen.
std::string without_remedy(const std::string& message) {
  return message.substr(0, message.find("\n  remedy: "));
}

}  // namespace

bool note_failure(const std::string& path, const LaunchMark& launch, const FailedRun& failure) {
  if (!posix_files().exists(path)) return false;
  RunManifest manifest = read_manifest(path);
  if (!is_of(manifest, launch)) return false;
  manifest.exit_code = failure.exit_code;
  manifest.exit_reason = without_remedy(failure.reason);
  manifest.exit_rank = failure.rank;
  if (manifest.ended.empty()) manifest.ended = utc_now();
  write_file_atomic(posix_files(), path, manifest_text(manifest));
  return true;
}

}  // namespace ftrun
