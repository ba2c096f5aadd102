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

/// Returns the kind of wait if compute waits for an instruction of this other lane.
WaitedFor waited_for(const Program& program, Lane lane);

/// RankTime holds the times of one rank in a walk.
struct RankTime {
  /// The time when its last instruction ended.
  Picoseconds end = 0;
  /// The time of the compute lane's instructions, by kind of instruction.
  std::array<Picoseconds, kInstrKinds> busy{};
  /// The time in which the compute lane was idle, by what it waited for last, as runs measure it.
  std::array<Picoseconds, kWaitedForKinds> waited{};
  /// The idle time of `waited`, by the lane that was busy in that time. An exchange counts from its
  /// start. The time before the start counts for whatever the exchange waited for; if it waited
  /// only for other ranks, that time counts for the exchange too. Lanes beyond the end of the
  /// vector have no time.
  std::vector<Picoseconds> waited_on;
};

/// SharedCores describes the cores that ranks share. Rank r is on node r / `ranks`, and at
/// most `cores` threads of a node run at once. If there are more threads, each gets an equal
/// share of the cores.
struct SharedCores {
  int ranks = 1;
  int cores = 1;
};

/// TimedInstr is an instruction that a rank ran in a walk.
struct TimedInstr {
  /// The index of the rank in world.ranks.
  int32_t rank = 0;
  const Instr* instr = nullptr;
  Picoseconds begin = 0;
  Picoseconds end = 0;
};
/// TimedInstrSink is called with each instruction when it ends, including instructions that take no
/// time; it may be empty.
using TimedInstrSink = std::function<void(const TimedInstr&)>;

/// Simulates all ranks of a world from the start of a training step to its end. An instruction
/// begins when its lane is free and its waits are done; a collective or transfer begins when the
/// last of its ranks has reached it. Returns the times of world.ranks. `cost` returns the cost of
/// each instruction of a program. Throws Error(kBug) if ranks wait forever.
std::vector<RankTime> timed_walk(
    const World& world, std::span<const LaneSchedule> schedules, const SharedCores& shared,
    const std::function<InstrCost(int32_t program, const Instr&)>& cost,
    const TimedInstrSink& sink = nullptr);

}  // namespace ftrun
