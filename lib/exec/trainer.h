#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/loader.h"
#include "data/sample_set.h"
#include "exec/recorder.h"
#include "exec/run_inputs.h"
#include "exec/session.h"
#include "exec/setup.h"
#include "exec/train.h"

namespace ftrun {

/// One rank's training: what is set up, in which order, and the loop.
class Trainer {
 public:
  explicit Trainer(const TrainRequest& request);

  /// Returns the exit code. Error of any step; the run's manifest then says so.
  int run();

 private:
  int train();
  void prepare_process();
  void take_folder();
  void open_data();
  void open_model();
  void check_program();
  RunManifest describe_run();
  void load_or_resume();
  void resume(const std::string& folder);
  void open_outputs();
  void start_loader();
  void train_until_stopped();
  StepMetrics train_step();
  void note_ready();
  void account(StepRun& step, StepMetrics& metrics);
  void show_step(const StepRun& step, const StepMetrics& metrics);
  void count_skipped(bool finite);
  void refuse_skipped_row() const;
  double validation_loss();
  void validate(StepMetrics& metrics);
  bool validation_due() const;
  void save_checkpoint();
  CheckpointMeta checkpoint_meta();
  void record_fingerprints(bool wait);
  void note_fingerprint(const std::string& role, const std::string& digest);
  void finish();
  void conclude();
  int exit_code() const;

  const TrainRequest& request_;
  const Config& config_;
  Session session_;
  std::unique_ptr<Recorder> recorder_;  // rank 0
  std::unique_ptr<TrainingSetup> setup_;
  std::unique_ptr<SampleSet> train_data_;
  std::unique_ptr<SampleSet> validation_data_;
  DataFingerprints fingerprints_;  // rank 0
  std::string train_fingerprint_;
  std::unique_ptr<Loader> loader_;
  SchedulerConfig schedule_;

  int64_t total_steps_ = 0;
  /// Steps done, and those of them whose update was left out.
  int64_t step_ = 0;
  int64_t skipped_ = 0;
  int64_t skipped_in_a_row_ = 0;
  int64_t tokens_ = 0;
  int64_t saved_step_ = -1;
  int signal_ = 0;
  bool ready_ = false;
  /// The state comes from a checkpoint.
  bool resumed_ = false;
};

}  // namespace ftrun
