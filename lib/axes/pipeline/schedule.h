#pragma once

#include <cstdint>
#include <vector>

#include "axes/pipeline/schedule_traits.h"

namespace ftrun {

/// Phase is the work on a micro-batch in one pass over the layers of a chunk.
enum class Phase : uint8_t {
  kForward,
  kBackward,    // input and weight gradients, interleaved
  kInputGrad,   // the gradient of the chunk's input, which the previous stage waits for
  kWeightGrad,  // the rest of backward
};

/// ScheduleAction is one phase of one micro-batch over the layers of one of a stage's chunks (a
/// stage has several only in interleaved and V schedules).
struct ScheduleAction {
  Phase phase = Phase::kForward;
  int32_t chunk = 0;
  int32_t micro_batch = 0;
  bool operator==(const ScheduleAction&) const = default;
};

/// Returns the number in the whole model of chunk `chunk` of a stage.
int model_chunk_of(ChunkPlacement placement, int stages, int stage, int chunk);
/// Returns the number of chunks that the schedule requires of a stage; 0: any number.
int required_chunks(PipelineSchedule schedule);
/// Returns whether a schedule can run this number of micro-batches. A schedule that runs in rounds
/// needs rounds of equal size, with at least one micro-batch for each stage if there are that many.
bool accepts_micro_batches(PipelineSchedule schedule, int stages, int32_t micro_batches);

/// Lists the actions of stage `stage` of `stages`, with `chunks` chunks on each stage, for
/// `micro_batches` micro-batches. Within a phase and chunk, micro-batches are in ascending order,
/// in which their gradients are summed.
std::vector<ScheduleAction> make_schedule(PipelineSchedule schedule, int stages, int chunks,
                                          int stage, int32_t micro_batches);

/// StageActions lists the actions of each stage, in the order in which it runs them.
using StageActions = std::vector<std::vector<ScheduleAction>>;
StageActions make_schedules(PipelineSchedule schedule, int stages, int chunks,
                            int32_t micro_batches);

/// Returns the letter of a phase: 'F', 'B', 'I' or 'W'.
char phase_letter(Phase phase);

}  // namespace ftrun
