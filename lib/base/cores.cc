#include "base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <optional>
#include <sstream>

#include "base/control_groups.h"
#include "base/error.h"
#include "base/folder_id.h"

namespace ftrun {
namespace {

constexpr size_t kMaxCores = 1 << 16;

/// Reads this process's CPU affinity. The kernel refuses a set that has no room for all cores that
/// the machine may have, so larger sets are tried.
std::vector<int> read_affinity() {
  for (size_t set_size = CPU_SETSIZE; set_size <= kMaxCores; set_size *= 2) {
    cpu_set_t* const set = CPU_ALLOC(set_size);
    const size_t bytes = CPU_ALLOC_SIZE(set_size);
    CPU_ZERO_S(bytes, set);
    const int error = ::sched_getaffinity(0, bytes, set) == 0 ? 0 : errno;
    std::vector<int> allowed;
    for (size_t core = 0; error == 0 && core < set_size; ++core)
      if (CPU_ISSET_S(core, bytes, set)) allowed.push_back(static_cast<int>(core));
    CPU_FREE(set);
    if (error == 0) return allowed;
    if (error != EINVAL) break;
  }
  const long online = std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN));
  std::vector<int> all(static_cast<size_t>(online));
  for (size_t core = 0; core < all.size(); ++core) all[core] = static_cast<int>(core);
  return all;
}

/// Returns the CPU time that one group grants, in cores; 0 for no limit.
double quota_of(const ControlGroup& group) {
  double quota = 0, period = 0;
  if (group.version == 2) {
    std::istringstream text(
        read_pseudo_file(group.folder + "/cpu.max"));  // "50000 100000", or "max 100000"
    if (!(text >> quota >> period)) return 0;
  } else {
    quota = static_cast<double>(read_group_number(group.folder + "/cpu.cfs_quota_us", -1));
    period = static_cast<double>(read_group_number(group.folder + "/cpu.cfs_period_us", 100000));
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

std::string folder_id_text(const std::string& folder) {
  const std::optional<FolderId> id = folder_id_of(folder);
  return id ? cat(id->device, ":", id->inode) : "";
}

}  // namespace

int threads_of_quota(double quota) {
  return std::max(1, static_cast<int>(std::ceil(std::min(quota, double{kMaxCores}))));
}

int CoreLimit::max_threads() const {
  const int cores = std::max(1, static_cast<int>(allowed_cores.size()));
  return quota_cores > 0 ? std::min(cores, threads_of_quota(quota_cores)) : cores;
}

CoreLimit read_core_limit(const std::string& root) {
  CoreLimit limit{.allowed_cores = read_affinity()};
  for (const ControlGroup& group : list_control_groups("cpu", root)) {
    const double quota = quota_of(group);
    if (quota == 0 || (limit.quota_cores > 0 && quota >= limit.quota_cores)) continue;
    limit.quota_cores = quota;
    limit.quota_group = group.name;
    limit.quota_group_id = folder_id_text(group.folder);
  }
  return limit;
}

int count_usable_cores() {
  static const double quota = read_core_limit().quota_cores;
  return CoreLimit{.allowed_cores = read_affinity(),
                   .quota_cores = quota,
                   .quota_group = {},
                   .quota_group_id = {}}
      .max_threads();
}

}  // namespace ftrun
