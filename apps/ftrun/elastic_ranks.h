#pragma once

#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "cluster/supervisor.h"
#include "config/elastic.h"
#include "config_source.h"
#include "report/manifest.h"

namespace ftrun {

/// The ranks of a run on one machine, of which whole replicas leave when one of their ranks keeps
/// failing: the data degree falls, the tensor, pipeline and context degrees and the global batch
/// stay, and so does what each step computes but for its rounding.
class ElasticRanks {
 public:
  /// `source`, `launch`: what `loaded` was read from; borrowed.
  ElasticRanks(const ConfigSource& source, const LaunchEnvironment& launch,
               const LoadedConfig& loaded);

  /// Drops the replica of the failure's rank and keeps as many others as config and memory allow;
  /// logs what it did. `times`: how often in a row the rank failed. Where it drops none though the
  /// config lets ranks leave, a warning says why, once.
  void leave(const FailureSummary& failure, int times);
  /// The ranks that are left, and who is not.
  RanksOfStart ranks() const;
  /// Adds what the next start has to have for it; nothing while all ranks are there.
  void add_to(Restart& restart) const;

 private:
  bool try_share(const BatchShare& share, std::string& why_not);
  std::string why_none() const;
  void drop_replicas(int rank, int64_t data_ranks);

  const ConfigSource& source_;
  const LaunchEnvironment& launch_;
  /// The config of the ranks that are left.
  LoadedConfig loaded_;
  /// Overrides of the config under which they share the batch: "parallel.data=2".
  std::vector<std::string> overrides_;
  /// The number of each rank that is left at the first start, which is that of its GPU.
  std::vector<int> first_numbers_;
  /// The number of ranks then.
  const int first_count_;
  /// Why the last ones left.
  std::string why_left_;
  /// The reason that was last told why none leaves.
  std::string told_;
};

/// The ranks that our supervisor started again, as add_to() told them.
RanksOfStart ranks_of_restart(const LaunchEnvironment& launch);

}  // namespace ftrun
