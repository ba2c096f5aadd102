#include "report/cpu_load_watch.h"

#include <cstdlib>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE(
    "a watch divides a machine's time into that of the ranks, of others and what was stolen") {
  // Two ranks use 4 s each on two cores within 10 s, in which 3 s were stolen.
  CpuTimes times{{.busy_seconds = 100, .stolen_seconds = 10, .total_seconds = 1000}, 7};
  const CpuLoadWatch watch(2, [&] { return times; });
  CHECK(watch.shares().other_programs == 0);
  times = {{.busy_seconds = 113, .stolen_seconds = 13, .total_seconds = 1020}, 11};
  CHECK(watch.shares().other_programs == Approx(0.25));
  CHECK(watch.shares().stolen == Approx(0.15));
  // If this process used more than its share, nothing is left for others.
  times.own_seconds = 14;
  CHECK(watch.shares().other_programs == 0);
  CHECK(watch.shares().stolen == Approx(0.15));
}

TEST_CASE("a watch reads the times of this machine and of this process") {
  const CpuTimes before = read_cpu_times();
  // Another process uses the CPU while this one waits.
  const CpuLoadWatch watch(1);
  const CpuLoadWatch many(1'000'000);
  const double earlier = read_cpu_times_with_children().own_seconds;
  REQUIRE(std::system("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done") == 0);
  const CpuLoadShares shares = watch.shares();
  CHECK((shares.other_programs > 0 && shares.other_programs <= 1.01));
  CHECK((shares.stolen >= 0 && shares.stolen <= 1.01));
  // The process that has ended counts as this one where children are included.
  CHECK(read_cpu_times_with_children().own_seconds > earlier);
  // A process's CPU time is counted in steps of 10 ms.
  const double until = before.own_seconds + 0.05;
  while (read_cpu_times().own_seconds < until) {
  }
  CHECK(read_cpu_times().machine.busy_seconds > before.machine.busy_seconds);
  CHECK(many.shares().other_programs == 0);
}

}  // namespace
}  // namespace ftrun
