#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ftrun {

/// What is done with a micro-batch in one pass over the layers of a chunk.
enum class Phase : uint8_t {
  kForward,
  kBackward,    // input and weight gradients, interleaved
  kInputGrad,   // what the stage before waits for
  kWeightGrad,  // the rest of backward
};

/// One phase of one micro-batch over the layers of one chunk (a stage's share of the model; one, but
/// for interleaved schedules).
struct ScheduleAction {
  Phase phase = Phase::kForward;
  int32_t chunk = 0;
  int32_t micro_batch = 0;
  bool operator==(const ScheduleAction&) const = default;
};

/// In which order a stage runs its actions. On one stage they differ in how many micro-batches are
/// under way, not in what is computed.
enum class ScheduleKind : uint8_t {
  kGpipe,    // all forward passes, then all backward passes (Huang et al. 2019)
  k1F1B,     // one forward, one backward (Narayanan et al. 2019, PipeDream-Flush)
  kZbH1,     // 1F1B with weight gradients where a stage would be idle (Qi et al. 2024)
};

/// Where the chunks of stages lie among the parts of a model that is cut into stages x chunks parts:
/// chunk k of stage s is part k x stages + s, or (two chunks) chunk 1 is part 2 x stages - 1 - s, so that
/// the first stage has the first and the last part.
enum class ChunkPlacement : uint8_t { kLoop, kV };

/// The actions of stage `stage` of `stages`, one chunk each, for `micro_batches` micro-batches.
/// Within a phase micro-batches come in ascending order, so gradients are summed in it.
std::vector<ScheduleAction> make_schedule(ScheduleKind kind, int stages, int stage, int32_t micro_batches);

/// "F0.0 B0.0 F0.1 B0.1": phase (F, B, I, W), chunk and micro-batch of each action.
std::string schedule_text(const std::vector<ScheduleAction>& actions);

}  // namespace ftrun
