#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// ProcessorLimit holds the processors that this process may use.
struct ProcessorLimit {
  /// Numbers of those that it may run on (its affinity, which control groups of sets of processors
  /// narrow).
  std::vector<int> allowed;
  /// Processors' worth of time that its control groups grant it, the least of all around it; 0 for
  /// no limit.
  double quota = 0;
  /// The group that sets the quota, "" for none, and its unique id (device and inode of its
  /// folder).
  std::string group, group_id;

  /// Counts the threads that can run at once: those it may run on, or the quota, rounded up.
  int count() const;
};

/// Reads the limit of this process. `root` is the folder that holds proc and sys: "" outside of
/// tests. What cannot be read does not limit.
ProcessorLimit read_processor_limit(const std::string& root = "");

/// Returns ProcessorLimit::count() of this process. The affinity is read each time, the quota once.
int usable_processors();

/// Returns a quota in whole threads: part of a processor counts as one more.
int threads_of_quota(double quota);

}  // namespace ftrun
