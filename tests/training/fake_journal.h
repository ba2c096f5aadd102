#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "training/loop_dependencies.h"

namespace ftrun::testing {

/// FakeJournal keeps a run's reports in memory.
class FakeJournal : public Journal {
 public:
  void print(const std::string& line) override {
    if (on_print) on_print(line);
    printed.push_back(line);
  }
  void warn(const std::string& line) override { warnings.push_back(line); }
  void update_manifest(const std::function<void(RunManifest&)>& change) override {
    if (updates_fail)
      throw Error(ExitCode::kEnvironment, "run.json: no space is left", "make room");
    change(manifest);
  }
  void update_manifest_collectively(const std::string&,
                                    const std::function<void(RunManifest&)>& change) override {
    update_manifest(change);
  }
  void record_step(const StepMetrics& step) override {
    calls.push_back(cat("record ", step.step));
    metrics.push_back(step);
  }
  void record_trace(const TracedStep& step) override { traced.push_back(step); }
  void record_first_batch() override {}
  void print_step_details(const TrainingProgress& now, const StepRun&,
                          const StepMetrics&) override {
    calls.push_back(cat("details ", now.step));
  }
  void show_phase(const std::string&) override {}

  /// Called with each line before the line is stored; null: nothing is called.
  std::function<void(const std::string&)> on_print;
  bool updates_fail = false;
  std::vector<std::string> calls;
  std::vector<std::string> printed, warnings;
  std::vector<StepMetrics> metrics;
  std::vector<TracedStep> traced;
  RunManifest manifest;
};

}  // namespace ftrun::testing
