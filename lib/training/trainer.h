#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cluster/failure_report.h"
#include "data/loader.h"
#include "engine/setup.h"
#include "inputs/run_data.h"
#include "training/check_rank_programs.h"
#include "training/checkpointed_state.h"
#include "training/checkpointer.h"
#include "training/describe_run.h"
#include "training/run_data_identity.h"
#include "training/run_evaluator.h"
#include "training/run_journal.h"
#include "training/run_stepper.h"
#include "training/session.h"
#include "training/stop_agreement.h"
#include "training/stop_lead.h"
#include "training/train.h"
#include "training/training_loop.h"
#include "training/training_progress.h"

namespace ftrun {

/// Trainer runs the training of one rank: it opens all parts of the run in order, runs the loop of
/// steps (TrainingLoop), and does the work after the loop (export, results).
class Trainer {
 public:
  explicit Trainer(const TrainRequest& request);
  /// Keeps the data mapped until the process ends, because a thread whose data do not answer is
  /// left behind (base/detachable_thread.h) and still uses them.
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Runs the training. Returns the exit code. Throws the Error of any step, which it also records
  /// in the run's manifest.
  int run();

 private:
  int train();
  void fail(const Error& error, const FailureReport& report);

  void prepare_process();
  void open_data();
  void open_model();
  void load_or_resume();
  void warn_of_placement();
  void open_outputs();
  void print_opening_notes();
  RunManifest describe();
  RunDescriptionInputs description_inputs() {
    return {request_, session_, *setup_, data_, matmul_libraries_, threads_};
  }

  bool has_ended() const { return progress_.has_ended(total_steps_); }

  /// ExportDecision says why the weights are not exported (`withheld_reason`), or what a user
  /// should know about the exported weights (`warning`). Both may be "".
  struct ExportDecision {
    std::string withheld_reason = {};
    std::string warning = {};
  };

  void finish();
  void export_model();
  ExportDecision decide_export() const;
  void report_end();
  std::string end_reason() const;
  std::string continue_text() const;
  std::string convert_command() const;

  /// CheckpointerAndEvaluator holds the objects that save, load and evaluate the model.
  struct CheckpointerAndEvaluator {
    explicit CheckpointerAndEvaluator(Trainer& run);

    std::unique_ptr<CheckpointedState> checkpointed;
    Checkpointer checkpointer;
    RunEvaluator evaluator;
  };
  /// RunningLoop holds the objects that train the model, from the step at which the run begins.
  struct RunningLoop {
    RunningLoop(Trainer& run, PlanSummary summary);

    RunStepper stepper;
    Loader loader;
    TrainingLoop loop;
  };

  Session session_;
  const TrainRequest request_;
  const Config& config_;
  StopAgreement stop_;
  StopLead stop_lead_;
  RunJournal journal_;
  /// Returns the seconds since this rank began.
  const std::function<double()> clock_;
  /// The libraries of matrix multiplication; absent on a GPU.
  std::optional<MatmulLibrariesInUse> matmul_libraries_;
  ThreadsInUse threads_;
  RunData data_;
  RunDataIdentity data_identity_;
  /// The setup, made by open_model(). A run that fails never frees its memory.
  std::unique_ptr<TrainingSetup> setup_;
  std::optional<CheckpointerAndEvaluator> checkpointer_and_evaluator_;
  /// The load of other programs on this machine while the steps ran.
  CpuLoadShares load_of_steps_;
  int64_t total_steps_ = 0;
  TrainingProgress progress_;
  std::optional<RunningLoop> running_loop_;
  /// The reason why the weights must not be exported; "" if they may be, or if no export is wanted.
  std::string withheld_reason_;
};

}  // namespace ftrun
