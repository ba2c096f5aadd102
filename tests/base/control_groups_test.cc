#include "base/control_groups.h"

#include "base/error.h"
#include "base/text.h"
#include "pseudo_root.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::PseudoRoot;

/// Returns the groups' names and their folders below the root, innermost first: "/a/b at
/// /sys/fs/cgroup/a/b (2), ...".
std::string groups_of(const PseudoRoot& root, const std::string& controller) {
  std::vector<std::string> texts;
  for (const ControlGroup& group : list_control_groups(controller, root.path()))
    texts.push_back(
        cat(group.name, " at ", group.folder.substr(root.path().size()), " (", group.version, ")"));
  return join(texts, ", ");
}

TEST_CASE("a control group of version 2 is followed by the groups that contain it") {
  PseudoRoot root;
  root.write("/proc/self/cgroup", "0::/job/rank\n");
  root.write("/sys/fs/cgroup/job/rank/cpu.max", "max 100000\n");
  CHECK(groups_of(root, "cpu") ==
        "/job/rank at /sys/fs/cgroup/job/rank (2), /job at /sys/fs/cgroup/job (2), / at "
        "/sys/fs/cgroup (2)");
}

TEST_CASE(
    "version 1 of control groups uses the controller's own hierarchy, wherever that is mounted") {
  PseudoRoot root;
  root.write("/proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/other\n3:cpuset:/set\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1\n");
  CHECK(groups_of(root, "cpu") ==
        "/job at /sys/fs/cgroup/cpu,cpuacct/job (1), / at /sys/fs/cgroup/cpu,cpuacct (1)");
  CHECK(groups_of(root, "memory") ==
        "/other at /sys/fs/cgroup/memory/other (1), / at /sys/fs/cgroup/memory (1)");
  root.write("/proc/self/mountinfo",
             "36 25 0:30 / /groups/of\\040all rw,nosuid shared:9 - cgroup cgroup rw,cpuacct,cpu\n"
             "37 25 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  root.write("/groups/of all/job/cpu.cfs_quota_us", "-1\n");
  CHECK(groups_of(root, "cpu") == "/job at /groups/of all/job (1), / at /groups/of all (1)");
}

TEST_CASE("both versions of control groups may be mounted at the same time") {
  PseudoRoot root;
  root.write("/proc/self/cgroup", "4:memory:/one\n0::/two\n");
  root.write("/proc/self/mountinfo",
             "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n31 25 0:27 / "
             "/sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  root.write("/sys/fs/cgroup/memory/one/memory.limit_in_bytes", "1\n");
  root.write("/sys/fs/cgroup/unified/two/memory.max", "1\n");
  CHECK(groups_of(root, "memory") ==
        "/one at /sys/fs/cgroup/memory/one (1), / at /sys/fs/cgroup/memory (1), /two at "
        "/sys/fs/cgroup/unified/two (2), / at /sys/fs/cgroup/unified (2)");
}

TEST_CASE("a container's mounted folder is its own group, and may contain others") {
  PseudoRoot root;
  root.write("/proc/self/cgroup", "0::/docker/abc/inner\n");
  root.write("/proc/self/mountinfo",
             "30 25 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  root.write("/sys/fs/cgroup/inner/cpu.max", "max 100000\n");
  CHECK(groups_of(root, "cpu") ==
        "/docker/abc/inner at /sys/fs/cgroup/inner (2), /docker/abc at /sys/fs/cgroup (2)");
  // A group whose name has the same prefix is another group, of which only the mounted folder is
  // visible.
  root.write("/proc/self/cgroup", "0::/docker/abcdef\n");
  CHECK(groups_of(root, "cpu") == "/docker/abc at /sys/fs/cgroup (2)");
  // A container with its own namespace sees itself as the outermost group; a process from outside
  // is above that.
  root.write("/proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  for (const char* path : {"0::/\n", "0::/../other\n"}) {
    root.write("/proc/self/cgroup", path);
    CHECK(groups_of(root, "cpu") == "/ at /sys/fs/cgroup (2)");
  }
}

TEST_CASE("if no control group can be seen there are none, and unreadable lines are skipped") {
  PseudoRoot root;
  CHECK(groups_of(root, "cpu").empty());
  root.write("/proc/self/cgroup", "nonsense\n\n:::\n7:cpu\n0::/job\n");
  root.write("/proc/self/mountinfo", "nonsense\n - \n1 2 3 - cgroup2\n");
  CHECK(groups_of(root, "cpu").empty());
}

TEST_CASE(
    "a limit of a control group is read if its file holds a number; \"max\" leaves the default") {
  PseudoRoot root;
  root.write("/a", "123 456\n");
  root.write("/b", "max\n");
  CHECK(read_group_number(root.path() + "/a", 7) == 123);
  CHECK(read_group_number(root.path() + "/b", 7) == 7);
  CHECK(read_group_number(root.path() + "/c", 7) == 7);
}

}  // namespace
}  // namespace ftrun
