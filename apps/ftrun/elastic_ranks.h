#pragma once

#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "cluster/supervisor.h"
#include "config/elastic.h"
#include "config_source.h"
#include "report/manifest.h"

namespace ftrun {

/// ElasticRanks are the ranks of a run on one machine. When one of a replica's ranks keeps failing,
/// the whole replica leaves: the data degree falls; the tensor, pipeline and context degrees and
/// the global batch stay, and so does the result of each step except for its rounding.
class ElasticRanks {
 public:
  /// Borrows `source` and `launch`, from which `loaded` was read.
  ElasticRanks(const ConfigSource& source, const LaunchEnvironment& launch,
               const LoadedConfig& loaded);

  /// Drops the replica of the failure's rank and keeps as many others as config and memory allow;
  /// logs what it did. `times`: how often in a row the rank failed. Where it drops none though the
  /// config lets ranks leave, it warns once, with the reason.
  void drop_replica_of(const FailureSummary& failure, int times);
  /// Returns the ranks that are left, and which ones have left.
  RanksOfStart ranks() const;
  /// Adds what the next start needs to know; nothing while no rank has left.
  void add_to(Restart& restart) const;

 private:
  bool try_share(const BatchShare& share, std::string& why_not);
  std::string why_none() const;
  void drop_replicas(int rank, int64_t data_ranks);

  const ConfigSource& source_;
  const LaunchEnvironment& launch_;
  /// The config of the ranks that are left.
  LoadedConfig loaded_;
  /// Overrides of the config with which the ranks that are left share the batch: "parallel.data=2".
  std::vector<std::string> overrides_;
  /// The number that each rank that is left had at the first start, which is that of its GPU.
  std::vector<int> first_numbers_;
  /// The number of ranks at the first start.
  const int first_count_;
  /// The reason why the last ones left.
  std::string why_left_;
  /// The reason last given why none leaves.
  std::string reported_;
};

/// Returns the ranks that our supervisor started again, as add_to() passed them on.
RanksOfStart ranks_of_restart(const LaunchEnvironment& launch);

}  // namespace ftrun
