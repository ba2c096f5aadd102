#include "engine/near_cores.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// A folder with the contents of the kernel's /sys on a machine with two NUMA nodes.
class Sysfs {
 public:
  Sysfs(const std::string& online, const std::string& first_node, const std::string& second_node) {
    write("devices/system/cpu/online", online);
    write("devices/system/node/online", "0-1");
    write("devices/system/node/node0/cpulist", first_node);
    write("devices/system/node/node1/cpulist", second_node);
  }
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = root() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void attach(const std::string& bus_id, const std::string& node) {
    write(cat("bus/pci/devices/", bus_id, "/numa_node"), node);
  }
  std::filesystem::path root() const { return folder_.path(); }

 private:
  testing::TemporaryFolder folder_;
};

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  std::vector<int> all;
  for (int each = 0; each < CPU_SETSIZE; ++each)
    if (CPU_ISSET(each, &set)) all.push_back(each);
  return all;
}

std::string core_list_text(const std::vector<int>& cores) {
  std::vector<std::string> numbers;
  for (const int each : cores) numbers.push_back(std::to_string(each));
  return join(numbers, ",");
}

TEST_CASE("near cores: core lists are read as the kernel writes them") {
  REQUIRE(parse_core_list("0-3,8,10-11") == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  REQUIRE(parse_core_list("5") == std::vector<int>{5});
  for (const char* text : {"", "3-1", "a", "1,", "0-99999", "-1"})
    REQUIRE(parse_core_list(text).empty());
}

TEST_CASE("near cores: the cores of the node that a GPU is attached to are found") {
  Sysfs sysfs("0-7", "0-1,4-5", "2-3,6-7");
  sysfs.attach("0000:1b:00.0", "1");
  sysfs.attach("0000:1c:00.0", "-1");
  REQUIRE(cores_near_device("0000:1B:00.0", sysfs.root()) == std::vector<int>{2, 3, 6, 7});
  REQUIRE(cores_near_device("0000:1C:00.0", sysfs.root()).empty());
  REQUIRE(cores_near_device("0000:1D:00.0", sysfs.root()).empty());
  sysfs.write("devices/system/node/online", "0");
  REQUIRE(cores_near_device("0000:1B:00.0", sysfs.root()).empty());
}

TEST_CASE(
    "near cores: a thread is bound to the cores near its GPU, unless something else has bound it") {
  const std::vector<int> all = allowed_cores();
  Sysfs sysfs(core_list_text(all), "1023", std::to_string(all.front()));
  sysfs.attach("0000:1b:00.0", "1");
  std::vector<int> bound, after, again;
  std::thread([&] {
    bound = bind_to_cores_near_device("0000:1B:00.0", sysfs.root());
    after = allowed_cores();
    // Now the thread's binding looks like a scheduler's: one core out of the several that are
    // online.
    sysfs.write("devices/system/cpu/online", "0-1022");
    again = bind_to_cores_near_device("0000:1B:00.0", sysfs.root());
  }).join();
  REQUIRE(bound == std::vector<int>{all.front()});
  REQUIRE(after == bound);
  REQUIRE(again.empty());
  REQUIRE(allowed_cores() == all);
}

}  // namespace
}  // namespace ftrun
