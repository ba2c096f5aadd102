#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/step_metrics.h"
#include "sim/class_plans.h"
#include "sim/step_time.h"

namespace ftrun {

/// PredictedStep is what a step was predicted to take, or why it was not.
struct PredictedStep {
  std::optional<StepTime> time;
  /// Machine::name and measured.
  std::string machine;
  std::string why_not;
};

/// Predicts by the machine file of this machine (own_machine_path()), where it is of these
/// processors and all `ranks` ranks of the run are here.
PredictedStep predict_here(const ClassPlans& all, int64_t ranks_here, int64_t threads);

/// StepTimes compares what steps took with what was predicted: the medians of the last thousand,
/// the first two of which are left out, as memory is touched and caches fill in them.
class StepTimes {
 public:
  explicit StepTimes(PredictedStep predicted);

  void note(const StepMetrics& metrics);
  /// "time of a step: 1.25 s predicted, 1.39 s measured ...". "" where too few steps were made.
  std::string text() const;
  /// Microseconds, for RunManifest::time.
  std::map<std::string, std::map<std::string, int64_t>> record() const;

 private:
  static constexpr size_t kKept = 1000;

  PredictedStep predicted_;
  int64_t noted_ = 0;
  /// Seconds of the last steps: whole, and for collectives.
  std::vector<double> steps_, communication_;
};

}  // namespace ftrun
