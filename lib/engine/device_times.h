#pragma once

#include <vector>

#include "engine/lane_device.h"

namespace ftrun {

/// Interval is the time in which an instruction ran, in seconds from the beginning of its run.
struct Interval {
  double begin = 0;
  double end = 0;

  bool operator==(const Interval&) const = default;
};

/// Returns the time that the intervals cover, as intervals in order that do not touch.
std::vector<Interval> union_of(std::vector<Interval> intervals);

/// Accounts for the times of a run's instructions, by their intervals, and for what ran beside
/// computation.
DeviceTimes account_times(const Program& program, const std::vector<Interval>& by_instr);

}  // namespace ftrun
