#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/instr_cost.h"
#include "sim/walk.h"
#include "sim/world.h"

namespace ftrun {

/// WaitedFor lists what a rank's compute lane may wait for.
enum class WaitedFor : uint8_t { kGroup, kStages, kCopies, kDisk };
inline constexpr size_t kWaitedForKinds = 4;

/// Returns what compute waits for while it waits for a step of this other lane.
WaitedFor waited_for(const Program& program, Lane lane);

/// RankTime holds the times of one rank in a walk.
struct RankTime {
  /// The time when its last step ended.
  Picoseconds end = 0;
  /// The time of the compute lane's steps, by kind of instruction.
  std::array<Picoseconds, kInstrKinds> busy{};
  /// The time in which the compute lane was idle, by what it waited for last, as runs measure it.
  std::array<Picoseconds, kWaitedForKinds> waited{};
  /// The waits of `waited`, divided by the lane that was busy meanwhile. An exchange is charged
  /// from its start on; the time before is charged to what it waited for, or also to the exchange
  /// if it waited only for other ranks. Lanes beyond the end of the list have no time.
  std::vector<Picoseconds> waited_on;
};

/// SharedProcessors are the cores that ranks share: rank r is on node r / `ranks`, and at most
/// `processors` threads of a node run at once. More threads get an equal share each.
struct SharedProcessors {
  int ranks = 1;
  int processors = 1;
};

/// TimedInstr is an instruction that a rank ran in a walk.
struct TimedInstr {
  /// An index of world.ranks.
  int32_t rank = 0;
  const Instr* instr = nullptr;
  Picoseconds begin = 0;
  Picoseconds end = 0;
};
/// TimedInstrSink gets each step when it ends, also those that take no time; may be null.
using TimedInstrSink = std::function<void(const TimedInstr&)>;

/// Runs all ranks of a world from the start of a training step to its end: an instruction begins
/// when its lane is free and its waits are done, a collective or transfer when the last of its
/// ranks has come. Returns the times of world.ranks. `cost` gives the cost of each instruction of a
/// program. Throws Error(kBug) where ranks wait forever.
std::vector<RankTime> timed_walk(
    const World& world, std::span<const LaneSchedule> schedules, const SharedProcessors& shared,
    const std::function<InstrCost(int32_t program, const Instr&)>& cost,
    const TimedInstrSink& sink = nullptr);

}  // namespace ftrun
