#include "engine/device_times.h"

#include <algorithm>
#include <utility>

namespace ftrun {
namespace {

/// Returns the seconds of `interval` that intervals of `busy` cover. `busy` is disjoint and
/// ascending.
double overlap_seconds(const RunInterval& interval, const std::vector<RunInterval>& busy) {
  const auto first = std::partition_point(busy.begin(), busy.end(), [&](const RunInterval& other) {
    return other.end_seconds <= interval.begin_seconds;
  });
  double seconds = 0;
  for (auto other = first; other != busy.end() && other->begin_seconds < interval.end_seconds;
       ++other)
    seconds += std::max(0.0, std::min(interval.end_seconds, other->end_seconds) -
                                 std::max(interval.begin_seconds, other->begin_seconds));
  return seconds;
}

double duration_seconds(const RunInterval& interval) {
  return interval.end_seconds - interval.begin_seconds;
}

/// Returns the intervals of instructions whose lane satisfies the condition.
template <typename LanePredicate>
std::vector<RunInterval> intervals_of_lanes(const Program& program,
                                            const std::vector<RunInterval>& by_instr,
                                            LanePredicate accepts) {
  std::vector<RunInterval> found;
  for (size_t i = 0; i < by_instr.size(); ++i)
    if (accepts(program.instrs[i].lane)) found.push_back(by_instr[i]);
  return found;
}

/// Returns the seconds of communication that `busy` does not cover. Collectives of several groups
/// at the same time count once.
double exposed_seconds(std::vector<RunInterval> communication,
                       const std::vector<RunInterval>& busy) {
  double sum = 0;
  for (const RunInterval& interval : merge_intervals(std::move(communication)))
    sum += duration_seconds(interval) - overlap_seconds(interval, busy);
  return sum;
}

bool computes(Lane lane) {
  return lane == Lane::kCompute;
}
bool moves_between_tiers(Lane lane) {
  return lane == Lane::kToDevice || lane == Lane::kToHost;
}

}  // namespace

std::vector<RunInterval> merge_intervals(std::vector<RunInterval> intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const RunInterval& a, const RunInterval& b) {
    return a.begin_seconds < b.begin_seconds;
  });
  std::vector<RunInterval> joined;
  for (const RunInterval& interval : intervals)
    if (joined.empty() || interval.begin_seconds > joined.back().end_seconds)
      joined.push_back(interval);
    else
      joined.back().end_seconds = std::max(joined.back().end_seconds, interval.end_seconds);
  return joined;
}

DeviceTimes compute_device_times(const Program& program, const std::vector<RunInterval>& by_instr) {
  DeviceTimes times;
  for (size_t i = 0; i < by_instr.size(); ++i)
    times.seconds_by_kind[static_cast<size_t>(program.instrs[i].kind)] +=
        duration_seconds(by_instr[i]);
  const std::vector<RunInterval> busy = intervals_of_lanes(program, by_instr, computes);
  times.exposed_communication_seconds =
      exposed_seconds(intervals_of_lanes(program, by_instr, is_communication), busy);
  for (const RunInterval& copy : intervals_of_lanes(program, by_instr, moves_between_tiers)) {
    times.copy_seconds += duration_seconds(copy);
    times.hidden_copy_seconds += overlap_seconds(copy, busy);
  }
  return times;
}

}  // namespace ftrun
