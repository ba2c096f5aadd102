#pragma once

#include <cstdint>
#include <vector>

#include "program/schedule.h"

namespace ftrun {

// When a pipeline does what: the lists of all stages run as soon as their inputs allow. It is how a
// schedule is judged before a run (planned costs of the model's parts) and after it (measured times
// of each action), so it knows nothing of models.

/// Seconds that the phases of a micro-batch take in one part of the model (a chunk of a stage).
struct PhaseSeconds {
  double forward = 0;
  double backward = 0;  // input and weight gradients, interleaved
  double input_grad = 0;
  double weight_grad = 0;

  double of(Phase phase) const;
};

struct TimedAction {
  ScheduleAction action;
  double start = 0;  // seconds from the begin of the step
  double end = 0;
};

/// StageTimeline is what one stage does.
struct StageTimeline {
  std::vector<TimedAction> actions;
  double busy = 0;  // seconds

  /// Seconds from the begin of its first action to the end of its last.
  double own_span() const;
};

struct ScheduleTimeline {
  std::vector<StageTimeline> stages;
  double makespan = 0;  // seconds from the first action's begin to the last one's end

  /// The share of the makespan in which the stage waits.
  double idle_share(int stage) const;
  /// The share of the makespan in which stages wait, over all of them.
  double idle_share() const;
};

/// Seconds of each action of each stage's list.
using ActionSeconds = std::vector<std::vector<double>>;

/// Runs `lists`, one a stage, where each action takes its own seconds and an activation or gradient
/// takes `transfer` seconds to another stage. A bug when actions wait for each other.
ScheduleTimeline run_timeline(const StageActions& lists, ChunkPlacement placement,
                              const ActionSeconds& seconds, double transfer = 0);
/// Runs the timeline where a phase takes as long for each micro-batch: `parts` are those of the
/// model, stages x chunks of them.
ScheduleTimeline run_timeline(const StageActions& lists, ChunkPlacement placement,
                              const std::vector<PhaseSeconds>& parts, double transfer = 0);

/// Parts that take equally long: backward twice as long as forward, half of it for each kind of
/// gradients.
std::vector<PhaseSeconds> equal_parts(int parts);

/// Most micro-batches of a chunk that the stage has begun and not finished: what is kept of each is
/// kept from its forward pass to the end of its backward pass.
int32_t most_in_flight(const std::vector<ScheduleAction>& list);
/// Most micro-batches of a chunk that the stage has begun and not finished the input gradients of:
/// a micro-batch that waits for its weight gradients alone keeps less.
int32_t most_before_input_grad(const std::vector<ScheduleAction>& list);

}  // namespace ftrun
