#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/loader.h"
#include "data/sample_set.h"
#include "exec/recorder.h"
#include "exec/memory_report.h"
#include "exec/run_inputs.h"
#include "exec/session.h"
#include "exec/setup.h"
#include "exec/step_traffic.h"
#include "exec/skipped_steps.h"
#include "exec/train.h"
#include "kernels/products.h"

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
  std::string run_name() const;
  RunManifest describe_run();
  void load_or_resume();
  void resume(const std::string& folder);
  void open_outputs();
  void say_device();
  void start_loader();
  void train_until_stopped();
  StepRun prepare(const StepBatch& batch);
  StepMetrics train_step();
  void note_ready();
  void account(StepRun& step, StepMetrics& metrics);
  void show_step(const StepRun& step, const StepMetrics& metrics);
  NonfiniteSearch find_nonfinite(StepRun step);
  void count_skipped(const StepRun& step);
  int64_t bytes_sent();
  std::optional<double> validation_loss();
  bool validate(StepMetrics& metrics);
  bool validation_due() const;
  bool last_validation_missing();
  void save_checkpoint();
  CheckpointMeta checkpoint_meta();
  void record_fingerprints();
  bool await_fingerprints_briefly();
  void await_fingerprints();
  void note_fingerprint(const std::string& role, const std::string& digest);
  void refuse_other_data(const std::string& path, const std::string& before,
                         const std::string& now) const;
  void finish();
  void save_last_checkpoint();
  void export_model();
  std::string how_to_go_on() const;
  void note_memory();
  void note_traffic();
  std::string write_sample();
  std::string written_sample();
  bool stops_sample();
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
  SkippedSteps skipped_;

  int64_t total_steps_ = 0;
  /// Steps done.
  int64_t step_ = 0;
  std::string sample_;
  int64_t tokens_ = 0;
  int64_t saved_step_ = -1;
  /// What stopped the run before all of it was done.
  int signal_ = 0;
  int sample_signal_ = 0;
  bool ready_ = false;
  /// Absent on a GPU.
  std::optional<ProductsInUse> products_;
  /// Of the process while it trains; the account at the end.
  PeakMemory peak_;
  std::optional<MemoryReport> memory_;
  /// Of this rank's steps; of all ranks at the end.
  std::optional<StepTraffic> traffic_;
  TrafficSums all_traffic_;
  /// The state comes from a checkpoint.
  bool resumed_ = false;
  std::string resumed_from_;
  std::string saved_data_fingerprint_;
};

}  // namespace ftrun
