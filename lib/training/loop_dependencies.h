#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "engine/step_run.h"
#include "report/run_manifest.h"
#include "report/step_metrics.h"
#include "report/trace_file.h"
#include "training/stop_agreement.h"
#include "training/stop_lead.h"
#include "training/training_progress.h"

namespace ftrun {

/// Stepper runs steps on this rank and measures them.
class Stepper {
 public:
  virtual ~Stepper() = default;

  /// Collective: runs the training program.
  virtual void run(StepRun& step) = 0;
  /// Adds the resources in use and the bytes moved since the last step.
  virtual void add_memory_and_traffic(StepMetrics& metrics) const = 0;
  /// Records the measurements of the last step, except its evaluations. Collective if the step is
  /// traced.
  virtual void record_measurements(const StepMetrics& metrics) = 0;
  /// Collective: repeats a step that was not finite, to find the first value that is not
  /// finite.
  virtual NonfiniteSearchResult find_nonfinite(const StepRun& step) = 0;
  /// Collective: returns a line for each rank that has become slow, or is no longer slow.
  virtual std::vector<std::string> find_slow_ranks(const StepMetrics& metrics) = 0;
  /// Collective: compares the copies of state that several ranks hold. Throws Error(kEnvironment)
  /// naming the ranks that differ.
  virtual void check_replicas(int64_t step) = 0;
};

/// Saver writes checkpoints. Its functions are collective except add_flags(), read_flags(),
/// will_save(), longest_save_seconds() and has_saved(). The data fingerprint is used on rank 0
/// only; "" if it is not known.
class Saver {
 public:
  virtual ~Saver() = default;

  /// Adds this rank's flags about its checkpoints before each step; read_flags() receives the flags
  /// of all ranks after the step.
  virtual void add_flags(RankFlags& flags) const = 0;
  virtual void read_flags(const RankFlags& flags) = 0;

  /// Returns whether save_if_due() would write a checkpoint now.
  virtual bool will_save(const TrainingProgress& progress) const = 0;
  /// Ends a step of a run that continues: logs the outcome of a save in the background, and saves
  /// if the config requires it or this is the best state so far (in the background if the config
  /// says so). Returns true if training paused for longer than a copy takes. If the best checkpoint
  /// could not be written, `progress` forgets it.
  virtual bool save_if_due(TrainingProgress& progress, const std::string& data_fingerprint) = 0;
  /// Saves the state after this step, and returns when the save is done. If the state is saved
  /// already, only records whether it is the best.
  virtual void save(TrainingProgress& progress, const std::string& data_fingerprint) = 0;

  /// Returns the seconds of the longest save in this start of the run; 0 before the first save has
  /// ended.
  virtual double longest_save_seconds() const = 0;
  /// Returns whether the state after this step has been saved.
  virtual bool has_saved(int64_t step) const = 0;
};

/// Evaluator measures how good the weights are.
class Evaluator {
 public:
  virtual ~Evaluator() = default;

  /// Returns whether the run has any set to evaluate.
  virtual bool has_sets() const = 0;
  /// Collective: returns the results of all sets; nothing if the ranks agreed to stop during the
  /// evaluation.
  virtual std::optional<std::vector<EvaluationResult>> evaluate(StopAgreement& stop) = 0;
  /// Collective: reads the results that an earlier start of the run recorded after `step`; empty
  /// unless it recorded the results of all sets.
  virtual std::vector<EvaluationResult> read_results(int64_t step) = 0;
  /// Collective: writes text samples with the weights after `step`; a second call for the same step
  /// does nothing.
  virtual void write_texts(int64_t step) = 0;
};

/// Journal prints and records on rank 0 what a run reports. On other ranks it writes only debug
/// lines to the rank's log.
class Journal {
 public:
  virtual ~Journal() = default;

  virtual void print(const std::string& line) = 0;
  virtual void warn(const std::string& line) = 0;
  /// Changes the manifest on rank 0, and replaces run.json.
  virtual void update_manifest(const std::function<void(RunManifest&)>& change) = 0;
  /// Collective: changes the manifest as update_manifest() does; a failure on rank 0 is thrown on
  /// all ranks.
  virtual void update_manifest_collectively(const std::string& what,
                                            const std::function<void(RunManifest&)>& change) = 0;
  /// Records the measurements of a step, evaluations included, and prints its progress line.
  virtual void record_step(const StepMetrics& metrics) = 0;
  /// Adds a traced step to the run's trace. A failure of the disk does not end the run.
  virtual void record_trace(const TracedStep& step) = 0;
  /// Records how long the start of the run took, until the first step had its batch; later calls do
  /// nothing.
  virtual void record_first_batch() = 0;
  /// Prints the lines about a step that the config requests beside the progress line: DeepSpeed's
  /// (steps_per_print) and the times by phase (wall_clock_breakdown). Every rank also writes a
  /// debug line of the step to its log.
  virtual void print_step_details(const TrainingProgress& progress, const StepRun& step,
                                  const StepMetrics& metrics) = 0;
  /// Publishes what this rank does from now on, for the messages of ranks that wait for it.
  virtual void show_phase(const std::string& what) = 0;
};

/// DataIdentity identifies the data of a run by fingerprints, which become known during training.
class DataIdentity {
 public:
  virtual ~DataIdentity() = default;

  /// Returns whether the run was resumed from a checkpoint.
  virtual bool is_resumed() const = 0;
  /// Records the fingerprints that have become known. Throws Error(kUsage) if the run that is
  /// resumed had other data.
  virtual void record_known_fingerprints() = 0;
  /// Collective: waits until all fingerprints are known, the ranks agree to stop, or a time limit
  /// passes.
  virtual void await_fingerprints(StopAgreement& stop) = 0;
  /// Collective: waits in the same way, once, before a resumed run saves anything that a stop
  /// signal does not ask for. So a run on other data is refused before it saves, unless reading the
  /// data takes too long.
  virtual void await_fingerprints_before_saving(StopAgreement& stop) = 0;
  /// Returns the fingerprint of the training data for the checkpoint's record; "" until it is
  /// known, and on ranks other than 0. A resumed run may have other data than the run before, so a
  /// checkpoint never records the earlier run's fingerprint.
  virtual const std::string& training_fingerprint() const = 0;
};

/// LoopDependencies holds the objects that the training loop calls; tests replace them. They must
/// outlive the loop.
struct LoopDependencies {
  /// Returns the batches of the coming steps in order (Loader::next).
  std::function<Loader::FetchedBatch()> next_step_batch;
  Stepper& stepper;
  Saver& saver;
  Evaluator& evaluator;
  Journal& journal;
  DataIdentity& data_identity;
  StopAgreement& stop;
  StopLead& stop_lead;
  /// Returns the seconds since some fixed moment; they never decrease.
  std::function<double()> clock;
};

}  // namespace ftrun
