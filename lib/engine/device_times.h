#pragma once

#include <array>
#include <vector>

#include "program/instr_kind.h"
#include "program/program.h"

namespace ftrun {

/// RunInterval is the time during which an instruction ran, in seconds since the beginning of its
/// run.
struct RunInterval {
  double begin_seconds = 0;
  double end_seconds = 0;

  bool operator==(const RunInterval&) const = default;
};

/// DeviceTimes holds the times of a run's instructions on a device, in seconds.
struct DeviceTimes {
  std::array<double, kInstrKinds> seconds_by_kind{};
  /// Seconds during which one or more collectives ran and compute did not.
  double exposed_communication_seconds = 0;
  /// Seconds of copies between the tiers device and host: all of them, and those during which
  /// compute ran.
  double copy_seconds = 0;
  double hidden_copy_seconds = 0;
};

/// Returns the union of the intervals as disjoint intervals in ascending order.
std::vector<RunInterval> merge_intervals(std::vector<RunInterval> intervals);

/// Computes the times of a run on a device from the intervals of its instructions: the seconds by
/// kind, and the seconds of communication and copies that overlap computation or do not.
DeviceTimes compute_device_times(const Program& program, const std::vector<RunInterval>& by_instr);

}  // namespace ftrun
