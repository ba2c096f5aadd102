#pragma once

#include <vector>

#include "engine/lane_device.h"

namespace ftrun {

/// Returns the union of the intervals as disjoint intervals in ascending order.
std::vector<Interval> union_of(std::vector<Interval> intervals);

/// Computes the times of a run on a device from the intervals of its instructions: the seconds by
/// kind, and the seconds of communication and copies that overlap computation or do not.
DeviceTimes compute_device_times(const Program& program, const std::vector<Interval>& by_instr);

}  // namespace ftrun
