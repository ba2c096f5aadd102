#include "base/cores.h"

#include <sched.h>

#include <cmath>

#include "child_process.h"
#include "pseudo_root.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::PseudoRoot;

TEST_CASE(
    "a CPU quota of version 2 is read as a number of CPUs, the least of all containing groups") {
  PseudoRoot root;
  root.write("/proc/self/cgroup", "0::/job/rank\n");
  root.write("/sys/fs/cgroup/job/rank/cpu.max", "max 100000\n");
  CHECK(read_core_limit(root.path()).quota_cores == 0);
  root.write("/sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  CHECK(read_core_limit(root.path()).quota_cores == 1.5);
  CHECK(read_core_limit(root.path()).quota_group == "/job");
  root.write("/sys/fs/cgroup/job/rank/cpu.max", "400000 100000\n");
  CHECK(read_core_limit(root.path()).quota_cores == 1.5);
  root.write("/sys/fs/cgroup/job/rank/cpu.max", "20000 50000\n");
  CHECK(read_core_limit(root.path()).quota_cores == 0.4);
  CHECK(read_core_limit(root.path()).quota_group == "/job/rank");
  CHECK_FALSE(read_core_limit(root.path()).quota_group_id.empty());
}

TEST_CASE("a CPU quota of version 1 is read as a number of CPUs") {
  PseudoRoot root;
  root.write("/proc/self/cgroup", "5:cpu,cpuacct:/job\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  CHECK(read_core_limit(root.path()).quota_cores == 0);
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  CHECK(read_core_limit(root.path()).quota_cores == 2.5);
}

TEST_CASE("an invalid CPU quota does not limit the number of CPUs") {
  PseudoRoot root;
  root.write("/proc/self/cgroup", "0::/job\n");
  for (const char* text :
       {"", "max", "100000", "0 100000", "-5 100000", "100000 0", "nan nan", "\n"}) {
    root.write("/sys/fs/cgroup/job/cpu.max", text);
    CHECK(read_core_limit(root.path()).quota_cores == 0);
  }
}

TEST_CASE("there are as many threads as can run at once: a fraction of a CPU counts as one more") {
  const auto count = [](size_t cores, double quota) {
    return CoreLimit{.allowed_cores = std::vector<int>(cores, 0),
                     .quota_cores = quota,
                     .quota_group = "",
                     .quota_group_id = ""}
        .max_threads();
  };
  CHECK(count(8, 0) == 8);
  CHECK(count(8, 0.1) == 1);
  CHECK(count(8, 1) == 1);
  CHECK(count(8, 1.5) == 2);
  CHECK(count(8, 7.01) == 8);
  CHECK(count(8, 64) == 8);
  CHECK(count(8, 1e300) == 8);
  CHECK(count(0, 0) == 1);
}

TEST_CASE("a process that may run on one CPU has one thread") {
  CHECK(testing::exit_code_in_child([] {
          cpu_set_t one;
          CPU_ZERO(&one);
          CPU_SET(::sched_getcpu(), &one);
          if (::sched_setaffinity(0, sizeof one, &one) != 0) return 100;
          const CoreLimit limit = read_core_limit("/nowhere");
          return limit.max_threads() == 1 && count_usable_cores() == 1 &&
                         CPU_ISSET(limit.allowed_cores.at(0), &one)
                     ? 0
                     : 1;
        }) == 0);
}

}  // namespace
}  // namespace ftrun
