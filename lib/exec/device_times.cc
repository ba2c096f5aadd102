#include "exec/device_times.h"

#include <algorithm>

namespace ftrun {
namespace {

/// Seconds of `interval` in which one of `busy` runs; those follow each other.
double beside(const Interval& interval, const std::vector<Interval>& busy) {
  const auto first = std::partition_point(busy.begin(), busy.end(),
                                          [&](const Interval& other) { return other.end <= interval.begin; });
  double seconds = 0;
  for (auto other = first; other != busy.end() && other->begin < interval.end; ++other)
    seconds += std::max(0.0, std::min(interval.end, other->end) - std::max(interval.begin, other->begin));
  return seconds;
}

bool moves_between_tiers(Lane lane) { return lane == Lane::kToDevice || lane == Lane::kToHost; }

}  // namespace

DeviceTimes account_times(const Program& program, const std::vector<Interval>& by_instr) {
  DeviceTimes times;
  std::vector<Interval> busy;
  for (size_t i = 0; i < by_instr.size(); ++i)
    if (program.instrs[i].lane == Lane::kCompute) busy.push_back(by_instr[i]);
  for (size_t i = 0; i < by_instr.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const double seconds = by_instr[i].end - by_instr[i].begin;
    times.by_kind[static_cast<size_t>(instr.kind)] += seconds;
    if (instr.lane == Lane::kCompute) continue;
    const double hidden = beside(by_instr[i], busy);
    if (is_communication(instr.lane)) times.exposed_communication += seconds - hidden;
    if (!moves_between_tiers(instr.lane)) continue;
    times.copies += seconds;
    times.hidden_copies += hidden;
  }
  return times;
}

}  // namespace ftrun
