#include "report/outcome.h"

#include "base/file.h"
#include "report/manifest.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

bool is_of(const RunManifest& manifest, const LaunchMark& launch) {
  auto supervisor = manifest.environment.find("FTRUN_SUPERVISOR");
  if (supervisor == manifest.environment.end()) supervisor = manifest.environment.find(kAgentVariable);
  // Times as utc_text writes them are in order as text is.
  return supervisor != manifest.environment.end() &&
         supervisor->second == std::to_string(launch.supervisor) &&
         manifest.started >= utc_text(launch.started);
}

/// A manifest says what happened; what to do about it was told on the screen.
std::string without_remedy(const std::string& message) {
  return message.substr(0, message.find("\n  remedy: "));
}

/// The ranks were started again and failed before one step was trained.
void note_vain_start(RunManifest& manifest, const LaunchMark& launch) {
  const int64_t step = manifest.restarts.empty() ? 0 : manifest.restarts.back().to_step;
  manifest.restarts.push_back({utc_text(launch.attempt), manifest.exit_reason, manifest.exit_rank, step, step});
}

}  // namespace

bool has_begun(const std::string& path, const LaunchMark& launch) {
  return posix_files().exists(path) && is_of(read_manifest(path), launch);
}

bool note_failure(const std::string& path, const LaunchMark& launch, const FailedRun& failure) {
  if (!posix_files().exists(path)) return false;
  RunManifest manifest = read_manifest(path);
  if (!is_of(manifest, launch)) return false;
  if (manifest.started < utc_text(launch.attempt) && manifest.exit_code) note_vain_start(manifest, launch);
  manifest.exit_code = failure.exit_code;
  manifest.exit_reason = without_remedy(failure.reason);
  manifest.exit_rank = failure.rank;
  if (manifest.ended.empty() || manifest.started < utc_text(launch.attempt)) manifest.ended = utc_now();
  write_file_atomic(posix_files(), path, manifest_text(manifest));
  return true;
}

}  // namespace ftrun
