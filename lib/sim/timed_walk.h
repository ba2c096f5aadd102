#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/instr_cost.h"
#include "sim/walk.h"
#include "sim/world.h"

namespace ftrun {

/// WaitedFor is what compute of a rank waited for.
enum class WaitedFor : uint8_t { kGroup, kStages, kCopies, kDisk };
inline constexpr size_t kWaitedForKinds = 4;

/// The time of one rank of a walk.
struct RankTime {
  /// The time when its last step ended.
  Picoseconds end = 0;
  /// Compute's steps, by kind of instruction.
  std::array<Picoseconds, kInstrKinds> busy{};
  /// Compute stood still, by what it waited for last, as runs measure it.
  std::array<Picoseconds, kWaitedForKinds> waited{};
  /// The waits of `waited`, divided by the lane that was busy meanwhile. An exchange is charged
  /// from its begin on; the time before is charged to what it waited for, or to the exchange too if
  /// that was other ranks alone. Lanes beyond the end of the list have no time.
  std::vector<Picoseconds> waited_on;
};

/// Processors that ranks share: rank r is of node r / `ranks`, and no more than `processors`
/// threads of a node run at once. Beyond that all get an equal share of them.
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
/// Gets each step when it ends, those that take no time too; null: nobody does.
using TimedInstrSink = std::function<void(const TimedInstr&)>;

/// Runs all ranks of a world from the begin of a step to its end: a step begins when its lane is
/// free and what it waits for is done, what ranks do together when the last of them has come.
/// Returns the times of world.ranks. `cost` is asked for each step by program and instruction.
/// Error(kBug) where ranks wait forever.
std::vector<RankTime> timed_walk(
    const World& world, std::span<const Course> courses, const SharedProcessors& shared,
    const std::function<InstrCost(int32_t program, const Instr&)>& cost,
    const TimedInstrSink& sink = nullptr);

}  // namespace ftrun
