#include "base/machine_info.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("the CPU's name is read from x86's and ARM's files") {
  REQUIRE(
      parse_cpu_model("processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7763\nflags : a\n") ==
      "AMD EPYC 7763");
  REQUIRE(parse_cpu_model("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd40\n") == "0xd40");
  REQUIRE(parse_cpu_model("cpu : POWER9, altivec supported") == "POWER9, altivec supported");
  REQUIRE(parse_cpu_model("").empty());
  REQUIRE(parse_cpu_model("model name\n:\n\n").empty());
}

TEST_CASE("memory is read in bytes") {
  MachineInfo machine;
  parse_meminfo("MemTotal:       24689764 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n",
                machine);
  REQUIRE(machine.memory_bytes == 24689764LL * 1024);
  REQUIRE(machine.memory_available_bytes == 20000000LL * 1024);
  parse_meminfo("nonsense", machine);
  REQUIRE(machine.memory_bytes == 0);
}

TEST_CASE("a process's kinds of pages are distinguished") {
  const ProcessMemory memory = parse_process_status(
      "Name:\tftrun\nVmHWM:\t    5000 kB\nVmRSS:\t    4000 kB\nRssAnon:\t    1000 kB\n"
      "RssFile:\t    2000 kB\nRssShmem:\t     500 kB\n");
  REQUIRE(memory.peak_resident_bytes == 5000 * 1024);
  REQUIRE(memory.anonymous_bytes == 1000 * 1024);
  REQUIRE(memory.file_backed_bytes == 2000 * 1024);
  REQUIRE(memory.shared_memory_bytes == 500 * 1024);
}

TEST_CASE("times are read after any process name") {
  const ProcessTimes times = parse_process_stat(
      "12 (a b) 9 9) S 1 2 3 4 5 6 7 8 9 10 250 125 13 14 15 16 17 18 987654 20 21\n", 100);
  REQUIRE(times.user_seconds == 2.5);
  REQUIRE(times.system_seconds == 1.25);
  REQUIRE(times.started_seconds == 9876.54);
  REQUIRE(parse_process_stat("garbage", 100).started_seconds == 0);
  REQUIRE(parse_process_stat("1 (x) S 1", 100).started_seconds == 0);
  REQUIRE(parse_process_stat("1 (x) S 1", 0).user_seconds == 0);
}

TEST_CASE("the facts about this machine can be read") {
  const MachineInfo machine = read_machine_info();
  REQUIRE_FALSE(machine.hostname.empty());
  REQUIRE(machine.kernel.starts_with("Linux "));
  REQUIRE_FALSE(machine.cpu_model.empty());
  REQUIRE(machine.cores >= 1);
  REQUIRE(machine.cores <= ::sysconf(_SC_NPROCESSORS_CONF));
  REQUIRE(machine.memory_bytes > (int64_t{64} << 20));
  REQUIRE(machine.memory_available_bytes > 0);
  REQUIRE(machine.memory_available_bytes <= machine.memory_bytes);
}

TEST_CASE("memory that this process touches is counted by kind") {
  constexpr size_t kSize = size_t{32} << 20;
  constexpr int64_t kNearly = int64_t{30} << 20;
  const auto touched = [](int flags) {
    void* data = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    REQUIRE(data != MAP_FAILED);
    std::memset(data, 1, kSize);
    return data;
  };
  const ProcessMemory before = read_process_memory();
  void* anonymous = touched(MAP_PRIVATE);
  void* shared = touched(MAP_SHARED);
  const ProcessMemory after = read_process_memory();
  ::munmap(anonymous, kSize);
  ::munmap(shared, kSize);
  REQUIRE(after.anonymous_bytes - before.anonymous_bytes > kNearly);
  REQUIRE(after.shared_memory_bytes - before.shared_memory_bytes > kNearly);
  REQUIRE(after.peak_resident_bytes >=
          after.anonymous_bytes + after.shared_memory_bytes + after.file_backed_bytes - kNearly);
  REQUIRE(read_process_memory().anonymous_bytes < after.anonymous_bytes - kNearly);
}

TEST_CASE("a process's age and CPU time grow") {
  const ProcessTimes before = read_process_times();
  REQUIRE(before.started_seconds > 0);
  REQUIRE(before.age_seconds >= 0);
  volatile double sink = 0;
  const std::clock_t start = std::clock();
  while (std::clock() - start < CLOCKS_PER_SEC / 20) sink = sink + 1;
  const ProcessTimes after = read_process_times();
  REQUIRE(after.started_seconds == before.started_seconds);
  REQUIRE(after.age_seconds - before.age_seconds >= 0.04);
  REQUIRE(after.user_seconds + after.system_seconds >=
          before.user_seconds + before.system_seconds + 0.03);
}

TEST_CASE("the machine's times are those of all its CPUs, guests counted once") {
  const MachineCpuTimes times = parse_machine_stat(
      "cpu  1000 200 300 4000 500 10 20 70 900 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n", 100);
  CHECK(times.busy_seconds == Approx(15.3));
  CHECK(times.stolen_seconds == Approx(0.7));
  CHECK(times.total_seconds == Approx(61.0));
  for (const char* text :
       {"", "cpu", "cpu  1 2 3", "intr 5 6 7 8 9 10 11 12", "cpu  a b c d e f g h"})
    CHECK(parse_machine_stat(text, 100).total_seconds == 0);
  CHECK(parse_machine_stat("cpu  1 2 3 4 5 6 7 8", 0).total_seconds == 0);
  CHECK(read_machine_times().total_seconds > 0);
}

}  // namespace
}  // namespace ftrun
