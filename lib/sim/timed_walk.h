#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/instr_cost.h"
#include "sim/walk.h"
#include "sim/world.h"

namespace ftrun {

/// WaitCause says what a rank's compute lane waits for: collectives of a group, another pipeline
/// stage, a copy between tiers, or the disk.
enum class WaitCause : uint8_t { kGroup, kStages, kCopies, kDisk };
inline constexpr size_t kWaitCauses = 4;

/// Returns the cause of a wait of compute that an instruction of the other lane `lane` ends.
WaitCause wait_cause(const Program& program, Lane lane);

/// RankWalkTimes holds the times of one rank in a walk.
struct RankWalkTimes {
  /// The time when its last instruction ended.
  Picoseconds end = 0;
  /// The time of the compute lane's instructions, by kind of instruction.
  std::array<Picoseconds, kInstrKinds> busy{};
  /// The time in which the compute lane was idle, by the cause of each wait: what ended last before
  /// compute went on, as runs measure it.
  std::array<Picoseconds, kWaitCauses> idle_by_cause{};
  /// The idle time of compute, by the lane that was busy then. Example: compute is idle from 30
  /// to 90, because it waits for a copy to host memory (from 70 to 90), which waited for a copy to
  /// the device (from 0 to 70). Then kToDevice has 40 of the 60 and kToHost 20, while
  /// `idle_by_cause` has all 60 at kCopies. If a collective waited only for other ranks, the time
  /// before its start counts for its own lane. Lanes beyond the end of the vector have no time.
  std::vector<Picoseconds> idle_by_lane;
};

/// SharedCores describes the cores that ranks share. Rank r is on node r / `ranks_per_node`, which
/// has `cores_per_node` cores. As under a time-slicing scheduler, compute lanes get cores in the
/// order in which they ask for them; a lane keeps its cores until it waits, or until a tick of the
/// scheduler's clock at which its time slice is over and others wait. If the other lanes also have
/// threads, all running threads get equal shares of the cores.
struct SharedCores {
  int ranks_per_node = 1;
  int cores_per_node = 1;
};

/// TimeVariation makes the times of compute instructions in a walk differ from their costs by a
/// pseudo-random share, -3 % to +3 %, as they do in a run. Without it, ranks with equal work and
/// fewer cores than they need would take turns in lockstep. Walks 2 i and 2 i + 1 vary each
/// instruction by opposite shares, so that its mean time in both is its cost, but for rounding.
struct TimeVariation {
  uint64_t walk = 0;
};

/// WalkedInstr is an instruction that a rank ran in a walk.
struct WalkedInstr {
  /// The index of the rank in world.ranks.
  int32_t rank = 0;
  const Instr* instr = nullptr;
  Picoseconds begin = 0;
  Picoseconds end = 0;
};
/// WalkedInstrSink is called with each instruction when it ends, including instructions that take
/// no time; it may be empty.
using WalkedInstrSink = std::function<void(const WalkedInstr&)>;

/// Simulates all ranks of a world from the start of a training step to its end. An instruction
/// begins when its lane is free and its waits are done; a collective or transfer begins when the
/// last of its ranks has reached it. Returns the times of world.ranks. `cost` returns the cost of
/// each instruction of a program; `variation` varies it. Throws Error(kBug) if ranks wait forever.
std::vector<RankWalkTimes> run_timed_walk(
    const World& world, std::span<const LaneSchedule> schedules, const SharedCores& shared,
    const std::function<InstrCost(int32_t program, const Instr&)>& cost,
    const WalkedInstrSink& sink = nullptr, std::optional<TimeVariation> variation = std::nullopt);

}  // namespace ftrun
