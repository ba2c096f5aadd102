#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/fingerprint.h"
#include "data/loader.h"
#include "data/sample_set.h"
#include "exec/recorder.h"
#include "exec/session.h"
#include "exec/setup.h"
#include "exec/train.h"

namespace ftrun {

/// One rank's training: what is set up, in which order, and the loop.
class Trainer {
 public:
  explicit Trainer(const TrainRequest& request);

  /// Returns the exit code.
  int run();

 private:
  void open_outputs();
  void open_data();
  void check_program();
  void load_or_resume();
  void resume(const std::string& folder);
  void start_loader();
  void train_until_stopped();
  StepMetrics train_step();
  void account(StepRun& step, StepMetrics& metrics);
  void count_skipped(bool finite);
  double validation_loss();
  void validate(StepMetrics& metrics);
  bool validation_due() const;
  void save_checkpoint();
  CheckpointMeta checkpoint_meta();
  void record_fingerprints();
  void finish();
  void export_model_folder();
  void show_sample();
  void report_memory();

  const TrainRequest& request_;
  const Config& config_;
  Session session_;
  std::unique_ptr<Recorder> recorder_;  // rank 0
  std::unique_ptr<TrainingSetup> setup_;
  std::unique_ptr<SampleSet> train_data_;
  std::unique_ptr<SampleSet> validation_data_;
  std::unique_ptr<FingerprintJob> fingerprint_;  // rank 0
  bool fingerprint_recorded_ = false;
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
};

}  // namespace ftrun
