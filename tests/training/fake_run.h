#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fake_journal.h"
#include "training/training_loop.h"

namespace ftrun::testing {

/// FakeRun implements everything that a run's loop calls. It records every call and trains nothing;
/// time passes only in steps. A test sets or overrides what it needs.
class FakeRun : public Stepper,
                public Saver,
                public Evaluator,
                public FakeJournal,
                public DataIdentity {
 public:
  FakeRun(const Config& config, int64_t total_steps);
  FakeRun(const FakeRun&) = delete;
  FakeRun& operator=(const FakeRun&) = delete;

  /// Returns a loop that calls this object and borrows it.
  TrainingLoop loop();

  void run(StepRun& step) override;
  void add_memory_and_traffic(StepMetrics&) const override {}
  void record_measurements(const StepMetrics& metrics) override;
  NonfiniteSearchResult find_nonfinite(const StepRun& step) override;
  std::vector<std::string> find_slow_ranks(const StepMetrics& metrics) override;
  void check_replicas(int64_t step) override;

  void add_flags(RankFlags&) const override {}
  void read_flags(const RankFlags&) override {}
  bool will_save(const TrainingProgress& now) const override;
  bool save_if_due(TrainingProgress& now, const std::string& data_fingerprint) override;
  void save(TrainingProgress& now, const std::string& data_fingerprint) override;
  double longest_save_seconds() const override { return save_seconds; }
  bool has_saved(int64_t step) const override { return saved_step_ == step; }

  bool has_sets() const override { return !config.data.validation.empty(); }
  std::optional<std::vector<EvaluationResult>> evaluate(StopAgreement& agreement) override;
  std::vector<EvaluationResult> read_results(int64_t step) override;
  void write_texts(int64_t step) override;

  bool is_resumed() const override { return resumed; }
  void record_known_fingerprints() override { calls.push_back("data"); }
  void await_fingerprints(StopAgreement& agreement) override;
  void await_fingerprints_before_saving(StopAgreement& agreement) override;
  const std::string& training_fingerprint() const override { return fingerprint; }

  const Config config;
  LoopPlan plan;
  TrainingProgress progress;
  /// Returns the next batches; by default each has 10 counted tokens.
  std::function<Loader::FetchedBatch()> next_step_batch;

  /// Changes the results of a step, by step: loss, norm, tokens, the flags of all ranks.
  std::map<int64_t, std::function<void(StepRun&)>> step_changes;
  double seconds_of_step = 1;
  double save_seconds = 0;
  /// The present time of the fake clock, in seconds.
  double clock_seconds = 0;
  /// `own_signal` is the signal that this rank has received. `agreed_signal` is the one on which
  /// all ranks agree outside of a step; 0: they agree on this rank's signal.
  int own_signal = 0;
  int agreed_signal = 0;
  /// The losses of evaluations, by step; 1 for a step that has none.
  std::map<int64_t, double> losses;
  /// The step whose evaluation a signal ends; -1: none.
  int64_t stopped_evaluation = -1;
  /// The losses that an earlier start has recorded, by step.
  std::map<int64_t, double> recorded_losses;
  bool resumed = false;
  /// Says that writing a save takes longer than copying it.
  bool slow_saves = false;
  std::string fingerprint = "data";
  std::vector<std::string> slow_ranks;

  /// The values of StepScalars::update of the steps that ran, and their loss scales.
  std::vector<int64_t> updates;
  std::vector<double> scales;
  StopLead stop_lead{0, false};
  StopAgreement stop;

 private:
  std::vector<EvaluationResult> results_of(double loss) const;

  StepBatch batch_;
  int64_t saved_step_ = -1;
};

}  // namespace ftrun::testing
