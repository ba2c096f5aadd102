#pragma once

#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "cluster/supervisor.h"
#include "config/elastic.h"
#include "config_source.h"
#include "report/run_manifest.h"

namespace ftrun {

/// ElasticRanks manages the ranks of a run on one machine. If a rank keeps failing, its whole
/// data-parallel replica is removed: the data degree becomes smaller. The tensor, pipeline and
/// context degrees and the global batch stay the same, so the result of each step stays the same
/// except for rounding.
class ElasticRanks {
 public:
  /// Keeps references to `source` and `launch`, from which `loaded` was read.
  ElasticRanks(const ConfigSource& source, const LaunchEnvironment& launch,
               const LoadedConfig& loaded);

  /// Removes the replica of the rank that failed, keeps as many other replicas as config and memory
  /// allow, and logs the change. `consecutive_failures` are those of the rank. If no replica can be
  /// removed although the config allows fewer ranks, warns once, with the reason.
  void remove_failed_replica(const FailureSummary& failure, int consecutive_failures);
  /// Returns the remaining ranks, and those that were removed.
  RanksOfStart ranks() const;
  /// Adds the settings that the next start needs; adds nothing as long as no rank was removed.
  void add_settings_to(RestartSettings& restart) const;

 private:
  bool try_batch_share(const BatchShare& share, std::string& why_not);
  std::string no_removal_reason() const;
  void remove_replicas(int rank, int64_t data_ranks);

  const ConfigSource& source_;
  const LaunchEnvironment& launch_;
  /// The config of the remaining ranks.
  LoadedConfig loaded_;
  /// Overrides of the config with which the remaining ranks divide the batch: "parallel.data=2".
  std::vector<std::string> overrides_;
  /// The number that each remaining rank had at the first start. It is also the number of the
  /// rank's GPU.
  std::vector<int> first_numbers_;
  /// The number of ranks at the first start.
  const int first_count_;
  /// The reason why ranks were last removed.
  std::string removed_reason_;
  /// The last reported reason why no replica is removed.
  std::string reported_;
};

/// Returns the ranks of this start if our supervisor restarted them, as
/// ElasticRanks::add_settings_to() passed them in the environment.
RanksOfStart ranks_of_restart(const LaunchEnvironment& launch);

}  // namespace ftrun
