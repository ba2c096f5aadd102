#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/failure_report.h"
#include "data/loader.h"
#include "engine/replica_check.h"
#include "engine/setup.h"
#include "plan/run_data.h"
#include "training/checkpointer.h"
#include "training/data_identity.h"
#include "training/describe_run.h"
#include "training/evaluation.h"
#include "training/resource_use.h"
#include "training/run_journal.h"
#include "training/session.h"
#include "training/slow_ranks.h"
#include "training/step_times.h"
#include "training/stop_agreement.h"
#include "training/stop_lead.h"
#include "training/text_sample.h"
#include "training/train.h"
#include "training/training_progress.h"

namespace ftrun {

/// Trainer is one rank's training: what is opened, in which order, and the loop of steps.
/// RunJournal reports the run; Checkpointer saves it.
class Trainer {
 public:
  explicit Trainer(const TrainRequest& request);

  /// Returns the exit code. Error of any step; the run's manifest then says so.
  int run();

 private:
  int train();
  void fail(const Error& error, const FailureReport& report);

  void prepare_process();
  void open_data();
  void open_model();
  void load_or_resume();
  void warn_of_placement();
  void open_replica_check();
  void open_slow_ranks();
  void open_outputs();
  void start_loader();
  RunManifest describe();
  RunParts parts() { return {request_, session_, *setup_, data_, products_, threads_}; }

  void train_until_stopped();
  void check_replicas();
  void review_stop_lead();
  void name_slow_ranks(const StepMetrics& metrics);
  StepMetrics train_step();
  StepMetrics metrics_of(const StepRun& step) const;
  void count_skipped(const StepRun& step);
  void warn_of_no_labels(const StepMetrics& metrics);

  void evaluate_before_training();
  bool evaluation_is_due() const;
  std::vector<StepMetrics> recorded_evaluations(
      const std::string& what, const std::function<bool(const StepMetrics&)>& wanted);
  std::vector<EvaluationResult> recorded_evaluation();
  void review_evaluations();
  bool evaluate(StepMetrics& metrics);
  void take_evaluation(const StepMetrics& metrics);
  void warn_of_uncounted_sets(const StepMetrics& metrics);
  void write_samples();
  bool has_ended() const { return progress_.step >= total_steps_ || progress_.evaluations.stops(); }

  void finish();
  void save_last_checkpoint();
  void export_model();
  std::string why_not_exported();
  void conclude();
  void say_sample();
  std::string how_it_ended() const;
  std::string how_to_continue() const;
  std::string convert_command() const;

  Session session_;
  const TrainRequest request_;
  const Config& config_;
  StopAgreement stop_;
  StopLead stop_lead_;
  RunJournal journal_;
  /// Absent on a GPU.
  std::optional<ProductsInUse> products_;
  ThreadsInUse threads_;
  RunData data_;
  DataIdentity identity_;
  std::unique_ptr<TrainingSetup> setup_;
  std::optional<Checkpointer> checkpointer_;
  std::optional<ReplicaCheck> replicas_;
  /// Seconds that the longest comparison of replicas took.
  double longest_check_ = 0;
  std::optional<SlowRanks> slow_ranks_;
  std::optional<ResourceUse> use_;
  std::optional<StepTimes> step_times_;
  std::unique_ptr<Loader> loader_;
  /// The schedule of the config, over all steps.
  SchedulerConfig lr_schedule_;
  int64_t total_steps_ = 0;
  TrainingProgress progress_;
  bool warned_of_no_labels_ = false;
  bool warned_of_uncounted_sets_ = false;
  EvaluationClock evaluation_clock_;
  std::optional<TextSamples> text_samples_;
  /// The step after which text was last written, and the text.
  int64_t sampled_step_ = -1;
  std::vector<TextSample> samples_;
  /// Why there is no export of weights that are not to be passed on as good; "" where there is one,
  /// or none is wanted.
  std::string withheld_;
};

}  // namespace ftrun
