#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/memory_history.h"
#include "sim/step_time.h"

namespace ftrun {

/// WorkKind groups kinds of instructions that a picture of lanes draws alike.
enum class WorkKind : uint8_t {
  kForward,
  kBackward,    // input gradients, with or without those of weights
  kWeightGrad,  // only gradients of weights
  kUpdate,
  kExchange,
  kCopy,
  kOther,
};
inline constexpr std::array<WorkKind, 7> kWorkKinds{
    WorkKind::kForward,  WorkKind::kBackward, WorkKind::kWeightGrad, WorkKind::kUpdate,
    WorkKind::kExchange, WorkKind::kCopy,     WorkKind::kOther};

/// Returns the kind that an instruction is drawn as.
WorkKind work_kind(const Instr& instr);
/// Returns "forward", "weight gradients", "exchange", ...
std::string_view work_name(WorkKind kind);

/// LaneBlock is an instruction of a lane, or neighbouring ones that are too short to be drawn
/// apart.
struct LaneBlock {
  Picoseconds begin = 0;
  Picoseconds end = 0;
  /// The time within it that its instructions take.
  Picoseconds busy = 0;
  /// The first and the last of the block's instructions.
  const Instr* first = nullptr;
  const Instr* last = nullptr;
  int64_t count = 0;
  /// The kind of most of `busy`.
  WorkKind kind = WorkKind::kOther;
};

/// LaneBlocks holds what one lane of a rank does in a step.
struct LaneBlocks {
  Lane lane = Lane::kCompute;
  Picoseconds busy = 0;
  std::vector<LaneBlock> blocks;
};

/// Lists the blocks of the lanes of a rank that do anything, by lane. Instructions shorter than
/// `pixel` are merged with neighbours that are as short and less than a pixel away, until a pixel
/// is full: a lane has at most three blocks a pixel and one more. Those that take no time are left
/// out.
std::vector<LaneBlocks> lane_blocks(const RecordedRank& rank, Picoseconds pixel);

/// StepLanes are the lanes of several ranks at one scale.
struct StepLanes {
  Picoseconds pixel = 1;
  /// Lanes by rank, in the order of the argument.
  std::vector<std::vector<LaneBlocks>> ranks;
};

/// Merges blocks at the finest scale, of 4,000, 2,000, 1,000, ... pixels a step, at which all lanes
/// together have at most `most` blocks; at the coarsest, 1 pixel a step, they may have more.
StepLanes step_lanes(const std::vector<const RecordedRank*>& ranks, Picoseconds end, size_t most);

/// MemoryPoint holds the bytes of a tier's arenas in use from a time until that of the next point.
struct MemoryPoint {
  Picoseconds begin = 0;
  CategoryBytes bytes{};
};

/// Lists the bytes in use in the arenas of a rank's tier over a step that ends at `end`, by the
/// times of its compute instructions. The step is cut into `most` parts; the list has the peak
/// moment of every part that differs from the part before it.
std::vector<MemoryPoint> memory_over_step(const RecordedRank& rank, Tier tier, Picoseconds end,
                                          size_t most);

}  // namespace ftrun
