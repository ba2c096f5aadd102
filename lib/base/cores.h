#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// CoreLimit holds the cores that this process may use.
struct CoreLimit {
  /// The numbers of the cores that it may run on: its CPU affinity, which cpuset control groups
  /// restrict.
  std::vector<int> allowed_cores;
  /// The CPU time that its control groups grant it, in cores: the minimum over all its groups and
  /// their ancestors; 0 for no limit.
  double quota_cores = 0;
  /// The group that sets the quota, "" for none, and its unique id (device and inode of its
  /// folder).
  std::string quota_group, quota_group_id;

  /// Returns the number of threads that can run at once: the allowed cores or the quota, rounded
  /// up, whichever is smaller.
  int max_threads() const;
};

/// Reads the limit of this process. `root` is the folder that holds proc and sys: "" outside of
/// tests. A file that cannot be read sets no limit.
CoreLimit read_core_limit(const std::string& root = "");

/// Returns CoreLimit::max_threads() of this process. The affinity is read each time, the quota
/// once.
int count_usable_cores();

/// Returns a quota in whole threads; a fraction of a core counts as one thread.
int threads_of_quota(double quota);

}  // namespace ftrun
