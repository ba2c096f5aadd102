#include "base/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "base/control_groups.h"
#include "base/error.h"
#include "base/machine_info.h"

namespace ftrun {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// Returns the value of "key value" in memory.stat.
int64_t read_memory_statistic(const std::string& path, std::string_view key) {
  std::istringstream lines(read_pseudo_file(path));
  std::string name;
  for (int64_t value = 0; lines >> name >> value;)
    if (name == key) return value;
  return 0;
}

/// GroupFiles holds the names of the files of one version of control groups.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* cache;
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

void tighten(MemoryLimit& limit, int64_t total_bytes, int64_t available_bytes,
             const std::string& limited_by, bool limited_by_group) {
  if (limit.total_bytes == 0 || total_bytes < limit.total_bytes) {
    limit.total_bytes = total_bytes;
    limit.limited_by = limited_by;
    limit.limited_by_group = limited_by_group;
  }
  limit.available_bytes = std::min(limit.available_bytes, std::max<int64_t>(0, available_bytes));
}

/// Tightens the limit by that of a control group. Version 2 slows down a group that uses more than
/// memory.high, so only memory below memory.high counts as available.
void tighten_by_group(MemoryLimit& limit, const ControlGroup& group) {
  const GroupFiles& files = group.version == 1 ? kVersion1 : kVersion2;
  const auto number = [&](const char* file, int64_t otherwise) {
    return read_group_number(cat(group.folder, "/", file), otherwise);
  };
  const int64_t used_bytes =
      number(files.used, 0) - read_memory_statistic(group.folder + "/memory.stat", files.cache);
  // Version 1 shows a huge number if there is no limit.
  constexpr int64_t kHuge = int64_t{1} << 60;
  const int64_t total_bytes = number(files.limit, kNoLimit);
  if (total_bytes < kHuge)
    tighten(limit, total_bytes, total_bytes - used_bytes, cat("the control group ", group.name),
            true);
  const int64_t high = group.version == 1 ? kNoLimit : number("memory.high", kNoLimit);
  if (high < kHuge)
    limit.available_bytes =
        std::min(limit.available_bytes, std::max<int64_t>(0, high - used_bytes));
}

}  // namespace

MemoryLimit read_memory_limit(const std::string& root) {
  MachineInfo machine;
  parse_meminfo(read_pseudo_file(root + "/proc/meminfo"), machine);
  MemoryLimit limit;
  limit.available_bytes = kNoLimit;
  if (machine.memory_bytes > 0)
    tighten(limit, machine.memory_bytes, machine.memory_available_bytes, "this machine", false);
  for (const ControlGroup& group : list_control_groups("memory", root))
    tighten_by_group(limit, group);
  if (limit.total_bytes == 0) limit.available_bytes = 0;
  limit.process = read_process_memory_limit();
  return limit;
}

ProcessMemoryLimit read_process_memory_limit() {
  std::istringstream pages(read_pseudo_file("/proc/self/statm"));
  int64_t size = 0, resident = 0, shared = 0, text = 0, unused = 0, data = 0;
  pages >> size >> resident >> shared >> text >> unused >> data;
  ProcessMemoryLimit tightest;
  const auto tighten = [&](int resource, int64_t used_pages, const char* limit_name) {
    rlimit limit{};
    if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY)
      return;
    const int64_t available_bytes = std::max<int64_t>(
        0, static_cast<int64_t>(limit.rlim_cur) - used_pages * ::sysconf(_SC_PAGESIZE));
    if (available_bytes < tightest.available_bytes)
      tightest = {available_bytes, limit_name, resource == RLIMIT_AS};
  };
  tighten(RLIMIT_AS, size, "its address space (ulimit -v)");
  tighten(RLIMIT_DATA, data, "its private memory (ulimit -d)");
  return tightest;
}

}  // namespace ftrun
