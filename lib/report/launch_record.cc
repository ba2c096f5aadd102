#include "report/launch_record.h"

#include "base/error.h"
#include "base/launch_variables.h"
#include "base/log.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

bool is_of_launch(const RunManifest& manifest, const LaunchId& launch) {
  const auto supervisor = manifest.environment.find(launch_variables::kSupervisor);
  // Texts of utc_text() sort in the order of their times.
  return supervisor != manifest.environment.end() &&
         supervisor->second == std::to_string(launch.supervisor) &&
         manifest.start_time >= utc_text(launch.first_start_seconds);
}

/// Removes the remedy from a message. A manifest records only what happened; the terminal has shown
/// the remedy.
std::string without_remedy(const std::string& message) {
  return message.substr(0, message.find("\n  remedy: "));
}

/// Records a restart whose ranks failed before they trained a step.
void record_failed_start(RunManifest& manifest, const LaunchId& launch) {
  const int64_t step = manifest.restarts.empty() ? 0 : manifest.restarts.back().to_step;
  manifest.restarts.push_back({utc_text(launch.latest_start_seconds), manifest.exit_reason,
                               manifest.exit_rank, step, step, launch.ranks});
}

}  // namespace

bool wrote_manifest(const std::string& path, const LaunchId& launch) {
  return posix_files().exists(path) && is_of_launch(read_manifest(path), launch);
}

bool torchrun_wrote_manifest(const std::string& path, const std::string& launch) {
  if (!posix_files().exists(path)) return false;
  const auto environment = read_manifest(path).environment;
  const auto found = environment.find(launch_variables::kAgent);
  return found != environment.end() && found->second == launch;
}

bool record_failure(const std::string& path, const LaunchId& launch, const FailedRun& failure,
                    FileSystem& files) {
  if (!posix_files().exists(path)) return false;
  RunManifest manifest = read_manifest(path);
  if (!is_of_launch(manifest, launch)) return false;
  if (manifest.start_time < utc_text(launch.latest_start_seconds) && manifest.exit_code)
    record_failed_start(manifest, launch);
  manifest.exit_code = failure.exit_code;
  manifest.exit_reason = without_remedy(failure.reason);
  manifest.exit_rank = failure.rank;
  if (manifest.end_time.empty() || manifest.start_time < utc_text(launch.latest_start_seconds))
    manifest.end_time = utc_now();
  write_file_atomic(files, path, manifest_text(manifest));
  return true;
}

LaunchRecord::LaunchRecord(std::string path, const LaunchId& launch, FileSystem& files)
    : path_(std::move(path)), launch_(launch), files_(files) {}

void LaunchRecord::record_start(int64_t start_seconds, const RanksOfStart& ranks) {
  launch_.latest_start_seconds = start_seconds;
  launch_.ranks = ranks;
}

void LaunchRecord::record_failure(const FailedRun& failure) {
  try {
    if (found_manifest_ != FoundManifest::kOurs) {
      found_manifest_ = FoundManifest::kUnreadable;
      found_manifest_ =
          wrote_manifest(path_, launch_) ? FoundManifest::kOurs : FoundManifest::kNone;
    }
    if (found_manifest_ == FoundManifest::kOurs)
      ftrun::record_failure(path_, launch_, failure, files_);
  } catch (const Error& error) {
    log_debug(error.what());
  }
}

}  // namespace ftrun
