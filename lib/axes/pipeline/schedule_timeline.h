#pragma once

#include <cstdint>
#include <vector>

#include "axes/pipeline/schedule.h"

namespace ftrun {

// A timeline simulates a pipeline: each stage runs its list of actions, each action as soon as its
// inputs have arrived. It evaluates a schedule before a run (with planned costs of the model's
// chunks) and after it (with measured times of each action), so it needs no model.

/// PhaseSeconds are the seconds that the phases of a micro-batch take in one chunk of the model (a
/// chunk of a stage).
struct PhaseSeconds {
  double forward = 0;
  double backward = 0;  // input and weight gradients, interleaved
  double input_grad = 0;
  double weight_grad = 0;

  double seconds_of(Phase phase) const;
};

struct TimedAction {
  ScheduleAction action;
  double start_seconds = 0;  // seconds from the start of the step
  double end_seconds = 0;
};

/// StageTimeline holds when one stage computes and when it waits.
struct StageTimeline {
  std::vector<TimedAction> actions;
  double busy_seconds = 0;
};

struct ScheduleTimeline {
  std::vector<StageTimeline> stages;
  double makespan_seconds = 0;  // seconds from the first action's start to the last one's end

  /// Returns the share of the makespan in which the stage waits.
  double idle_share(int stage) const;
  /// Returns the share of the makespan in which stages wait, over all stages.
  double idle_share() const;
};

/// ActionSeconds are the seconds of each action of each stage's list.
using ActionSeconds = std::vector<std::vector<double>>;

/// Simulates the lists, one for each stage, in which each action takes its own seconds and an
/// activation or gradient takes `transfer_seconds` to another stage. Actions that wait for each
/// other are a bug.
ScheduleTimeline simulate_timeline(const StageActions& lists, ChunkPlacement placement,
                                   const ActionSeconds& seconds, double transfer_seconds = 0);
/// Simulates the lists if a phase takes equally long for each micro-batch; `by_chunk` has an entry
/// for each model chunk, stages x chunks.
ScheduleTimeline simulate_timeline(const StageActions& lists, ChunkPlacement placement,
                                   const std::vector<PhaseSeconds>& by_chunk,
                                   double transfer_seconds = 0);

/// Returns the seconds of chunks that take equally long. Backward takes twice as long as forward;
/// half of that time is for each kind of gradient.
std::vector<PhaseSeconds> equal_chunk_seconds(int model_chunks);

/// Returns the maximum number of micro-batches of a chunk that a stage has begun and not finished:
/// it keeps their activations from the forward pass to the end of the backward pass.
int32_t max_in_flight(const std::vector<ScheduleAction>& list);
/// Returns the maximum number of micro-batches of a chunk that a stage has begun and whose input
/// gradients it has not finished: a micro-batch that waits only for its weight gradients keeps
/// fewer activations.
int32_t max_awaiting_input_grad(const std::vector<ScheduleAction>& list);

}  // namespace ftrun
