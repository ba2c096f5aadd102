#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/step_parts.h"
#include "report/cpu_load_watch.h"
#include "report/step_metrics.h"
#include "sim/rank_class_plans.h"
#include "sim/step_time.h"

namespace ftrun {

/// PredictedStep is the predicted time of a step, or the reason why there is no prediction.
struct PredictedStep {
  std::optional<StepTime> time;
  /// The machine's name and the date of its measurement (Machine::name and measured_on).
  std::string machine;
  std::string unavailable_reason;
  /// Trace events of the predicted step (base/trace_events.h); "" if none are wanted.
  std::string events = {};
};

/// Predicts the time of a step with the machine file of this machine (own_machine_path()), if it
/// describes these cores and all `ranks_here` ranks of the run are on this machine. The events
/// are those of the lowest rank of each class that contains one of `traced_ranks`.
PredictedStep predict_step_on_this_machine(const RankClassPlans& class_plans, int64_t ranks_here,
                                           int64_t threads,
                                           const std::vector<int>& traced_ranks = {});

/// StepSeconds says how this rank's compute lane spent a step, as the executor measured it: on
/// operations of layers, on updates, and waiting for other stages.
struct StepSeconds {
  double layers = 0;
  double update = 0;
  double stage_wait = 0;
};

/// StepTimeComparison compares measured step times with the prediction. It computes medians over
/// the last thousand steps of a rank. The first two steps are left out, because memory is touched
/// for the first time and caches are filled.
class StepTimeComparison {
 public:
  explicit StepTimeComparison(PredictedStep predicted);

  /// Adds a step to the medians, unless it is one of the first two; `seconds` are of this rank.
  void add_step(const StepMetrics& metrics, const StepSeconds& seconds);
  /// Replaces the measured parts by their means over the ranks of rank 0's pipeline stage, because
  /// ranks that have equal work wait unequally if their cores are not equally fast. Called on all
  /// ranks after the last step; `in_first_stage` says whether this rank is in that stage, and `sum`
  /// adds numbers over all ranks, in place.
  void average_over_stage(bool in_first_stage, const std::function<void(std::span<double>)>& sum);
  /// Returns the text "time of a step: 1.25 s predicted, 1.39 s measured ...", and the same for
  /// each part. If they differ by more than 15 %, it names the part that differs most and says
  /// whether `load` explains the difference. Returns "" if there were too few steps.
  std::string text(const CpuLoadShares& load) const;
  /// Returns the times for RunManifest::time: microseconds by part, and the shares of `load` in
  /// millionths.
  std::map<std::string, std::map<std::string, int64_t>> manifest_values(
      const CpuLoadShares& load) const;
  const PredictedStep& predicted_step() const { return predicted_; }

 private:
  static constexpr size_t kMaxRecordedSteps = 1000;
  /// PartSeconds holds a part of a step and its seconds.
  struct PartSeconds {
    StepPartName name;
    double predicted = 0;
    double measured = 0;
  };
  /// MeasuredParts holds the parts that a rank measures, in seconds.
  struct MeasuredParts {
    double layers = 0, update = 0, communication = 0, stages = 0;
  };
  /// Returns the means over the stage or, before average_over_stage(), the medians of this rank.
  MeasuredParts measured_parts() const;
  std::vector<PartSeconds> part_seconds() const;

  PredictedStep predicted_;
  int64_t recorded_steps_ = 0;
  /// Seconds of the last steps: the whole step, operations of layers, updates, waits for
  /// collectives, and waits for other stages.
  std::vector<double> steps_, layers_, update_, communication_, stages_;
  /// The result of average_over_stage().
  std::optional<MeasuredParts> stage_mean_;
};

}  // namespace ftrun
