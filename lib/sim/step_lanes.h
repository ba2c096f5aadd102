#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/instr_kind.h"
#include "program/memory_history.h"
#include "sim/step_time.h"

namespace ftrun {

/// Returns the kind of work as which an instruction is drawn.
WorkKind work_kind(const Instr& instr);
/// Returns "forward", "weight gradients", "communication", ...
std::string_view work_name(WorkKind kind);

/// LaneBar is one instruction of a lane, or several neighboring instructions that are too short
/// to be drawn separately.
struct LaneBar {
  Picoseconds begin = 0;
  Picoseconds end = 0;
  /// The sum of the times of the bar's instructions.
  Picoseconds busy = 0;
  /// The first and the last of the bar's instructions.
  const Instr* first = nullptr;
  const Instr* last = nullptr;
  int64_t count = 0;
  /// The kind of work that takes most of `busy`.
  WorkKind kind = WorkKind::kOther;
};

/// LaneBars holds what one lane of a rank does in a step.
struct LaneBars {
  Lane lane = Lane::kCompute;
  Picoseconds busy = 0;
  std::vector<LaneBar> bars;
};

/// Lists the bars of all lanes of a rank that have work, by lane. Instructions shorter than
/// `pixel` are merged with equally short neighbors less than a pixel away, until a pixel is full.
/// So a lane has at most three bars per pixel, plus one. Instructions that take no time are left
/// out.
std::vector<LaneBars> make_lane_bars(const RankTimeline& rank, Picoseconds pixel);

/// StepLanes holds the lanes of several ranks, drawn at the same scale.
struct StepLanes {
  Picoseconds pixel = 1;
  /// Lanes by rank, in the order of the argument of make_step_lanes().
  std::vector<std::vector<LaneBars>> ranks;
};

/// Draws the lanes at the finest scale of 4,000, 2,000, 1,000, ... pixels per step at which all
/// lanes together have at most `max_count` bars. At the coarsest scale, 1 pixel per step, they
/// may have more.
StepLanes make_step_lanes(const std::vector<const RankTimeline*>& ranks, Picoseconds end,
                          size_t max_count);

/// MemorySample holds the bytes of a tier's arenas that are in use from this point until the next
/// one.
struct MemorySample {
  Picoseconds begin = 0;
  CategoryBytes bytes{};
};

/// Lists the bytes in use in the arenas of a rank's tier during a step that ends at `end`, timed by
/// its compute instructions. The step is cut into `max_count` parts of equal length; the list has
/// the peak of each part that differs from the part before it.
std::vector<MemorySample> sample_step_memory(const RankTimeline& rank, Tier tier, Picoseconds end,
                                             size_t max_count);

}  // namespace ftrun
