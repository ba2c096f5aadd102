#include "base/memory_limit.h"

#include <sys/resource.h>

#include "base/error.h"
#include "child_process.h"
#include "pseudo_root.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::PseudoRoot;

constexpr const char* kMeminfo =
    "MemTotal:       1000000 kB\nMemFree: 1 kB\nMemAvailable:   800000 kB\n";

/// Returns "total available by" of the memory limit.
std::string limit_of(const PseudoRoot& root) {
  const MemoryLimit limit = read_memory_limit(root.path());
  return cat(limit.total_bytes, " ", limit.available_bytes, " ", limit.limited_by,
             limit.limited_by_group ? " (group)" : "");
}

TEST_CASE("a machine without control groups has all of its memory") {
  PseudoRoot root;
  CHECK(limit_of(root) == "0 0 ");
  root.write("/proc/meminfo", kMeminfo);
  CHECK(limit_of(root) == "1024000000 819200000 this machine");
}

TEST_CASE(
    "the tightest of nested groups of version 2 limits, and their page cache counts as free") {
  PseudoRoot root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/proc/self/cgroup", "0::/job/rank\n");
  root.write("/sys/fs/cgroup/job/rank/memory.max", "max\n");
  root.write("/sys/fs/cgroup/job/memory.max", "500000000\n");
  root.write("/sys/fs/cgroup/job/memory.current", "400000000\n");
  root.write("/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 100000000\n");
  CHECK(limit_of(root) == "500000000 200000000 the control group /job (group)");
  root.write("/sys/fs/cgroup/job/rank/memory.max", "300000000\n");
  CHECK(limit_of(root) == "300000000 200000000 the control group /job/rank (group)");
  // A limit above the machine's memory has no effect.
  root.write("/sys/fs/cgroup/job/rank/memory.max", "9000000000\n");
  root.write("/sys/fs/cgroup/job/memory.max", "9000000000\n");
  CHECK(limit_of(root) == "1024000000 819200000 this machine");
}

TEST_CASE("a group with memory.high has no more than that available") {
  PseudoRoot root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/proc/self/cgroup", "0::/job\n");
  root.write("/sys/fs/cgroup/job/memory.max", "max\n");
  root.write("/sys/fs/cgroup/job/memory.high", "300000000\n");
  root.write("/sys/fs/cgroup/job/memory.current", "100000000\n");
  CHECK(limit_of(root) == "1024000000 200000000 this machine");
}

TEST_CASE("a memory limit of cgroups v1 counts, but not the huge value for no limit") {
  PseudoRoot root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/proc/self/cgroup", "4:memory:/job\n0::/\n");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "230686720\n");
  root.write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "30686720\n");
  CHECK(limit_of(root) == "230686720 200000000 the control group /job (group)");
}

TEST_CASE("limits of the process itself are named by what they limit") {
  const auto left = [](__rlimit_resource_t resource) {
    return testing::text_from_child([resource] {
      const rlimit limit{rlim_t{1} << 50, rlim_t{1} << 50};
      ::setrlimit(resource, &limit);
      const ProcessMemoryLimit space = read_process_memory_limit();
      const bool is_near =
          space.available_bytes < (int64_t{1} << 50) && space.available_bytes > (int64_t{1} << 49);
      return cat(space.limit_name, is_near ? " near" : " far",
                 space.counts_shared_memory ? ", shared too" : "");
    });
  };
  CHECK(left(RLIMIT_AS) == "its address space (ulimit -v) near, shared too");
  CHECK(left(RLIMIT_DATA) == "its private memory (ulimit -d) near");
  CHECK(left(RLIMIT_CORE) == " far");
}

}  // namespace
}  // namespace ftrun
