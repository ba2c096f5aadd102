#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "engine/executor.h"
#include "report/manifest.h"
#include "report/step_metrics.h"
#include "training/stop_agreement.h"
#include "training/stop_lead.h"
#include "training/training_progress.h"

namespace ftrun {

/// Stepper runs steps on this rank and watches what they take.
class Stepper {
 public:
  virtual ~Stepper() = default;

  /// Collective: runs the training program.
  virtual void run(StepRun& step) = 0;
  /// Adds what is in use and has been moved after the last step.
  virtual void add_use(StepMetrics& metrics) const = 0;
  /// Notes the figures of the last step, all but its evaluations.
  virtual void note(const StepMetrics& metrics) = 0;
  /// Collective: runs a step that was not finite again, to find where.
  virtual NonfiniteSearch find_nonfinite(const StepRun& step) = 0;
  /// Collective: a line for each rank that is slow and was not before, or is no longer.
  virtual std::vector<std::string> find_slow_ranks(const StepMetrics& metrics) = 0;
  /// Collective: compares what several ranks hold alike. Error(kEnvironment) naming who differs.
  virtual void check_replicas(int64_t step) = 0;
};

/// Saver writes checkpoints. Its calls are collective but for add_votes(), will_save(),
/// longest_save() and has_saved(); a data fingerprint matters on rank 0, "" where it is not known.
class Saver {
 public:
  virtual ~Saver() = default;

  /// Adds what this rank reports to the others of its checkpoints; read_votes() gets the votes of
  /// all ranks. Once before and after each step.
  virtual void add_votes(Votes& votes) const = 0;
  virtual void read_votes(const Votes& votes) = 0;

  /// Says whether save_if_due() would write a checkpoint now.
  virtual bool will_save(const TrainingProgress& progress) const = 0;
  /// Ends a step of a run that goes on: logs how a save in the background ended, and saves where
  /// the config asks for it or this is the best state so far, in the background where it says so.
  /// True when training stood for longer than a copy takes. A best checkpoint that could not be
  /// written is forgotten in `progress`.
  virtual bool save_if_due(TrainingProgress& progress, const std::string& data_fingerprint) = 0;
  /// Returns when the state after this step has been saved; where it has been, notes only that it
  /// is the best.
  virtual void save(TrainingProgress& progress, const std::string& data_fingerprint) = 0;

  /// Seconds that the longest save of this start took; 0 before the first one has ended.
  virtual double longest_save() const = 0;
  /// Says whether the state after this step has been saved.
  virtual bool has_saved(int64_t step) const = 0;
};

/// Evaluator finds out how good the weights are.
class Evaluator {
 public:
  virtual ~Evaluator() = default;

  /// Says whether the run has any set to evaluate.
  virtual bool has_sets() const = 0;
  /// Collective: the results of all sets; nothing when the ranks agreed to stop meanwhile.
  virtual std::optional<std::vector<EvaluationResult>> evaluate(StopAgreement& stop) = 0;
  /// Collective: the results that an earlier start of the run recorded after `step`; empty if it
  /// did not record those of all sets.
  virtual std::vector<EvaluationResult> recorded(int64_t step) = 0;
  /// Collective: writes texts by the weights after `step`, once for each step.
  virtual void write_texts(int64_t step) = 0;
};

/// Journal keeps what a run reports. On other ranks than the first, calls do nothing but write
/// debug lines to their logs.
class Journal {
 public:
  virtual ~Journal() = default;

  virtual void say(const std::string& line) = 0;
  virtual void warn(const std::string& line) = 0;
  virtual void update(const std::function<void(RunManifest&)>& change) = 0;
  /// Collective: an update that fails on the first rank fails on all.
  virtual void update_together(const std::string& what,
                               const std::function<void(RunManifest&)>& change) = 0;
  virtual void record(const StepMetrics& metrics) = 0;
  /// Called when a step has its data: the first call notes how long the start took.
  virtual void note_ready() = 0;
  /// Shows what the config wants to see of a step.
  virtual void show_step(const TrainingProgress& progress, const StepRun& step,
                         const StepMetrics& metrics) = 0;
  /// Shows what this rank does from now on, to whoever would wait for it.
  virtual void show_phase(const std::string& what) = 0;
};

/// DataWatch finds out which data a run trains on while it trains.
class DataWatch {
 public:
  virtual ~DataWatch() = default;

  /// The run goes on from a checkpoint.
  virtual bool is_resumed() const = 0;
  /// Notes what has become known. Error(kUsage) when the resumed run had other data.
  virtual void record() = 0;
  /// Collective: until all is known, the ranks agree to stop, or it has taken too long.
  virtual void await(StopAgreement& stop) = 0;
  /// Collective, the same once before a resumed run saves anything: nothing that was trained on
  /// other data is to be found by a later start.
  virtual void await_before_saving(StopAgreement& stop) = 0;
  /// The fingerprint that a checkpoint is to record of the training data; "" if it is not known,
  /// and on other ranks than 0.
  virtual const std::string& training_fingerprint() const = 0;
};

/// LoopParts are what the loop calls, chosen when it is made. References are borrowed.
struct LoopParts {
  /// Hands out the batches of coming steps in order (Loader::next).
  std::function<Loader::Fetched()> next_batch;
  Stepper& stepper;
  Saver& saver;
  Evaluator& evaluator;
  Journal& journal;
  DataWatch& data;
  StopAgreement& stop;
  StopLead& stop_lead;
  /// Seconds since any moment, which never go back.
  std::function<double()> clock;
};

}  // namespace ftrun
