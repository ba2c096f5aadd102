#include "report/memory_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "report/machine.h"

namespace ftrun {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A file of one number; `otherwise` for "max", for no file and for what is no number.
int64_t read_number(const std::string& path, int64_t otherwise) {
  const std::string text = read_text(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? value : otherwise;
}

/// The value of "key value" in memory.stat.
int64_t statistic(const std::string& path, std::string_view key) {
  std::istringstream lines(read_text(path));
  std::string name;
  for (int64_t value = 0; lines >> name >> value;)
    if (name == key) return value;
  return 0;
}

/// Names of the files of one version of control groups.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* cache;
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

void tighten(MemoryLimit& limit, int64_t total, int64_t available, const std::string& by) {
  if (limit.total == 0 || total < limit.total) {
    limit.total = total;
    limit.by = by;
  }
  limit.available = std::min(limit.available, std::max<int64_t>(0, available));
}

/// The group itself and those around it; inside a container the path may name groups that are not
/// to be seen, and the mounted folder is the container's own.
void tighten_by_groups(MemoryLimit& limit, const std::string& mount, std::string path,
                       const GroupFiles& files) {
  while (true) {
    const std::string folder = mount + (path == "/" ? "" : path) + "/";
    const int64_t total = read_number(folder + files.limit, kNoLimit);
    // Version 1 writes a huge number for no limit.
    if (total < (int64_t{1} << 60)) {
      const int64_t used = read_number(folder + files.used, 0);
      const int64_t cache = statistic(folder + "memory.stat", files.cache);
      tighten(limit, total, total - used + cache, cat("the control group ", path));
    }
    if (path.empty() || path == "/") return;
    path = path.substr(0, path.rfind('/'));
    if (path.empty()) path = "/";
  }
}

}  // namespace

MemoryLimit read_memory_limit(const std::string& root) {
  MachineInfo machine;
  parse_meminfo(read_text(root + "/proc/meminfo"), machine);
  MemoryLimit limit{0, kNoLimit, ""};
  if (machine.memory_bytes > 0)
    tighten(limit, machine.memory_bytes, machine.memory_available_bytes, "this machine");
  std::istringstream lines(read_text(root + "/proc/self/cgroup"));
  // "0::/path" is version 2, "4:memory:/path" version 1.
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controller = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controller.empty())
      tighten_by_groups(limit, root + "/sys/fs/cgroup", path, kVersion2);
    else if (controller == "memory")
      tighten_by_groups(limit, root + "/sys/fs/cgroup/memory", path, kVersion1);
  }
  if (limit.total == 0) limit.available = 0;
  return limit;
}

int64_t address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - pages * 4096);
}

}  // namespace ftrun
