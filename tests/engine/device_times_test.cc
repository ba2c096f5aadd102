#include "engine/device_times.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using Intervals = std::vector<RunInterval>;

Program program_of(const std::vector<Lane>& lanes) {
  Program program;
  for (const Lane lane : lanes) {
    Instr& instr = program.instrs.emplace_back();
    instr.lane = lane;
    instr.kind = is_communication(lane) ? InstrKind::kAllReduce : InstrKind::kForward;
  }
  return program;
}

TEST_CASE("the union of intervals joins those that overlap or touch, in order of time") {
  REQUIRE(merge_intervals({}).empty());
  REQUIRE(merge_intervals({{4, 5}, {0, 1}}) == Intervals{{0, 1}, {4, 5}});
  REQUIRE(merge_intervals({{0, 2}, {1, 3}, {3, 4}}) == Intervals{{0, 4}});
  REQUIRE(merge_intervals({{0, 9}, {1, 2}, {5, 6}}) == Intervals{{0, 9}});
}

TEST_CASE("time in which collectives of several groups run at once counts once as exposed") {
  const Program program = program_of({lane_of(0), lane_of(1), lane_of(2)});
  const DeviceTimes times = compute_device_times(program, {{0, 4}, {1, 5}, {2, 3}});
  REQUIRE(times.exposed_communication_seconds == 5);
  // The time of each kind still counts every collective in full.
  REQUIRE(times.seconds_by_kind[static_cast<size_t>(InstrKind::kAllReduce)] == 9);
}

TEST_CASE(
    "a collective does not count as exposed while compute works, whichever group it belongs to") {
  const Program program = program_of({Lane::kCompute, Lane::kCompute, lane_of(0), lane_of(1)});
  REQUIRE(compute_device_times(program, {{0, 2}, {4, 6}, {1, 5}, {1, 7}})
              .exposed_communication_seconds == 3);
}

TEST_CASE("copies between tiers do not count as communication") {
  const Program program = program_of({Lane::kToDevice, Lane::kToHost, Lane::kDisk});
  const DeviceTimes times = compute_device_times(program, {{0, 1}, {0, 1}, {0, 1}});
  REQUIRE(times.exposed_communication_seconds == 0);
  REQUIRE(times.copy_seconds == 2);
}

}  // namespace
}  // namespace ftrun
