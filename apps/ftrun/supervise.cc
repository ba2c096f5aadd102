#include "supervise.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/launch_variables.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "cluster/supervisor.h"
#include "commands.h"
#include "config/elastic.h"
#include "elastic_ranks.h"
#include "engine.h"
#include "report/launch_record.h"
#include "report/run_folder.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

/// A rank is removed, if the config allows it, after it has caused this many consecutive failures
/// without a new checkpoint.
constexpr int kFailuresBeforeRemoval = 2;

/// Returns the path of a rank's log; "" if the rank failed before it opened one.
std::string find_log(const std::string& output_dir, int rank) {
  std::error_code unseen;
  const std::string path = RunPaths(output_dir).log(rank);
  return std::filesystem::exists(path, unseen) ? path : "";
}

/// SupervisedRun is the supervisor's view of the folder of a run.
class SupervisedRun {
 public:
  SupervisedRun(const std::string& output_dir, const ResumeRequest& resume)
      : paths_(output_dir),
        resume_(resume),
        record_(paths_.manifest(), {.supervisor = ::getpid(),
                                    .first_start_seconds = started_,
                                    .latest_start_seconds = started_}),
        first_checkpoint_id_(find_newest_checkpoint_id()) {}

  /// Records the failure and the rank that caused it in the run's manifest, because rank 0 may not
  /// know the cause.
  void record_failure(const FailureSummary& failure) {
    record_.record_failure({failure.exit_code, failure.rank, failure.reason});
  }

  /// Returns a text that identifies the newest checkpoint; "" for none. The text changes if the
  /// same step is saved again. The checkpoint is not verified here; the ranks that resume from it
  /// do that.
  std::string find_newest_checkpoint_id() const {
    const auto newest = find_newest_checkpoint();
    return newest ? cat(newest->folder, " ", newest->serial) : "";
  }

  /// Decides how to restart the ranks; returns nothing if they must not be restarted. As long as
  /// the ranks have not written run.json there is nothing to resume from, and the folder may belong
  /// to another run. If run.json cannot be read, a new start would refuse the folder, and that
  /// error would hide the original failure.
  std::optional<RestartSettings> plan_restart(const FailureSummary& failure) const {
    const LaunchRecord::FoundManifest file = record_.found_manifest();
    if (file == LaunchRecord::FoundManifest::kUnreadable) return std::nullopt;
    const bool wrote_manifest = file == LaunchRecord::FoundManifest::kOurs;
    if (!wrote_manifest && failure.exit_code == static_cast<int>(ExitCode::kEnvironment))
      return std::nullopt;
    if (!wrote_manifest) return RestartSettings{};
    if (resume_.step && find_newest_checkpoint_id() == first_checkpoint_id_)
      return RestartSettings{.checkpoint = cat("step ", *resume_.step)};
    const auto newest = find_newest_checkpoint();
    return RestartSettings{
        .environment = {cat(launch_variables::kResume, "=auto")},
        .checkpoint = newest ? std::filesystem::path(newest->folder).filename().string() : ""};
  }
  /// Records the time of a new start of `ranks`. It lies after all that the last start has written,
  /// and before all that the new start will write.
  void record_start(const RanksOfStart& ranks) {
    record_.record_start(static_cast<int64_t>(wall_seconds()) + 1, ranks);
  }

 private:
  std::optional<CheckpointEntry> find_newest_checkpoint() const {
    const auto checkpoints = list_checkpoints(paths_.checkpoints());
    if (checkpoints.empty() || !checkpoints.front().problem.empty()) return std::nullopt;
    return checkpoints.front();
  }

  const RunPaths paths_;
  const ResumeRequest& resume_;
  const int64_t started_ = static_cast<int64_t>(wall_seconds());
  LaunchRecord record_;
  const std::string first_checkpoint_id_;
};

int allowed_restarts(std::optional<int> requested, const LaunchEnvironment& launch) {
  if (launch.nodes == 1) return requested.value_or(kDefaultRestarts);
  if (requested.value_or(0) > 0)
    throw Error(ExitCode::kUsage,
                cat("--restarts ", *requested,
                    ": ranks are restarted only in runs on one node; this run has ", launch.nodes,
                    " nodes"),
                "remove --restarts, and let the launcher start all nodes again: torchrun "
                "--max-restarts, or a requeued job with --resume auto");
  return 0;
}

}  // namespace

int supervise(const std::vector<std::string>& arguments, const ConfigSource& source,
              const LoadedConfig& loaded, const LaunchEnvironment& launch,
              const ResumeRequest& resume, std::optional<int> restarts) {
  const std::string& output_dir = loaded.config.output_dir;
  SupervisorOptions supervisor;
  supervisor.local_ranks = static_cast<int>(loaded.ranks / std::max(1, launch.nodes));
  supervisor.nodes = launch.nodes;
  supervisor.node = launch.node;
  if (launch.nodes > 1) {
    supervisor.master_addr = launch.master_addr;
    supervisor.master_port = launch.master_port;
  }
  supervisor.rank_main = run_arguments;
  supervisor.arguments = arguments;
  supervisor.environment = {cat(launch_variables::kResume, "=")};
  supervisor.terminal = {::isatty(1) == 1, ::isatty(2) == 1};
  supervisor.log_of = [&](int rank) { return find_log(output_dir, rank); };
  SupervisedRun run(output_dir, resume);
  supervisor.on_failure = [&](const FailureSummary& failure) { run.record_failure(failure); };
  supervisor.restarts.max_restarts_without_progress = allowed_restarts(restarts, launch);
  supervisor.newest_checkpoint_id = [&] { return run.find_newest_checkpoint_id(); };
  ElasticRanks ranks(source, launch, loaded);
  // The plan of an elastic run is asked even if it can remove no rank, because it says why.
  const bool is_elastic = min_remaining_ranks(loaded.config) > 0;
  supervisor.restarts.may_remove_ranks = [is_elastic](int consecutive_failures) {
    return is_elastic && consecutive_failures >= kFailuresBeforeRemoval;
  };
  supervisor.on_restart = [&](const FailureSummary& failure, int consecutive_failures) {
    auto next = run.plan_restart(failure);
    if (!next) return next;
    if (consecutive_failures >= kFailuresBeforeRemoval)
      ranks.remove_failed_replica(failure, consecutive_failures);
    ranks.add_settings_to(*next);
    run.record_start(ranks.ranks());
    return next;
  };
  prepare_engine_for_ranks(loaded.config);
  return run_supervisor(supervisor);
}

ResumeRequest resume_for_this_start(ResumeRequest requested, const LaunchEnvironment& launch) {
  const char* wanted =
      launch.kind == LaunchKind::kSupervised ? std::getenv(launch_variables::kResume) : nullptr;
  if (wanted != nullptr && std::string(wanted) == "auto") requested.resume_newest();
  return requested;
}

}  // namespace ftrun
