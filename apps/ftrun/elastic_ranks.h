#pragma once

#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "cluster/supervisor.h"
#include "config/elastic.h"
#include "config_source.h"

namespace ftrun {

/// The ranks of a run on one machine, of which whole replicas leave when one of their ranks keeps failing: the data degree falls,
/// the tensor, pipeline and context degrees and the global batch stay, and so does what each step computes but for its rounding.
class ElasticRanks {
 public:
  /// `source`, `launch`: what `loaded` was read from; borrowed.
  ElasticRanks(const ConfigSource& source, const LaunchEnvironment& launch, const LoadedConfig& loaded);

  /// The rank has failed so many times in a row: the most ranks without its replica that the config and the machine allow go on,
  /// which is told. All stay where the config allows no fewer; where it does but they cannot train, a warning says why.
  void leave(int rank, int times);
  /// What the next start has to have for it; nothing while all ranks are there.
  void add_to(Restart& restart) const;

 private:
  bool try_share(const BatchShare& share, std::string& why_not);
  void drop_replicas(int rank, int64_t data_ranks);

  const ConfigSource& source_;
  const LaunchEnvironment& launch_;
  /// Of the ranks that are left.
  LoadedConfig loaded_;
  /// Overrides of the config under which they share the batch: "parallel.data=2".
  std::vector<std::string> overrides_;
  /// Of each rank that is left: its number at the first start, which is that of its GPU.
  std::vector<int> first_numbers_;
};

}  // namespace ftrun
