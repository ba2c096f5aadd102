#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exec/phase_clock.h"
#include "exec/session.h"
#include "exec/setup.h"

namespace ftrun {

/// What each stage of a pipeline waits for the others in the steps of a run, beside what its schedule alone makes
/// it wait: that schedule run with the times that the phases were measured to take.
class PipelineUse {
 public:
  /// The setup is borrowed.
  explicit PipelineUse(TrainingSetup& setup);

  /// After each run of the training program. The first of several is not counted: memory comes with it.
  void end_step();
  /// Collective, after the last step: puts the ranks' figures together.
  void total(Session& session);

  /// A table, "" where there is nothing to tell.
  std::string text() const;
  /// RunManifest::pipeline.
  std::map<std::string, std::map<std::string, int64_t>> record() const;

 private:
  void add(const PipelineSeconds& seconds);

  TrainingSetup& setup_;
  int64_t steps_ = 0;
  PipelineSeconds sums_;
  /// By stage, of its time until the decision.
  std::vector<double> idle_;
  std::vector<double> idle_by_schedule_;
};

}  // namespace ftrun
