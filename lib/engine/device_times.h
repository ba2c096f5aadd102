#pragma once

#include <vector>

#include "engine/lane_device.h"

namespace ftrun {

/// Returns the time that the intervals cover, as intervals in order that do not touch.
std::vector<Interval> union_of(std::vector<Interval> intervals);

/// Accounts for the times of a run's instructions, by their intervals, and for what ran beside
/// computation.
DeviceTimes account_times(const Program& program, const std::vector<Interval>& by_instr);

}  // namespace ftrun
