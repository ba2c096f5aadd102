#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "checkpoint/manifest.h"
#include "inputs/train_request.h"
#include "report/csv_monitor.h"
#include "report/effective_time.h"
#include "report/manifest.h"
#include "report/metrics_writer.h"
#include "report/progress.h"
#include "report/run_folder.h"
#include "report/run_follower.h"
#include "report/tensorboard.h"
#include "report/text_samples.h"
#include "report/trace_file.h"

namespace ftrun {

/// Recorder writes everything that rank 0 reports of a run: metrics.jsonl, TensorBoard, CSV, the
/// progress line, run.json, the report at the end. Only the lock is written to the run folder
/// before start(), so that a run whose model or data was refused can be started again as it is.
class Recorder {
 public:
  /// Takes the run folder. Error(kUsage) for one that holds another run, Error(kEnvironment) for
  /// one that another process uses.
  explicit Recorder(const TrainRequest& request);

  const RunPaths& paths() const { return folder_.paths(); }
  /// Returns the manifest of the folder's earlier run, when this one continues it.
  const std::optional<RunManifest>& before() const { return before_; }

  /// Refuses a resume that is not the run of the folder (admit_resume) and notes other changes.
  void admit(const RunManifest& now);
  /// Admits the run that saved the checkpoint in `folder`, by the checkpoint's own record.
  void admit(const std::string& folder, const CheckpointMeta& saved, const RunManifest& now);
  /// Says, and notes for run.json, that training starts from the model's weights though a resume
  /// was asked for.
  void note_new_start();
  /// Refuses with Error(kBadInput) a resumed run whose saved checkpoints are gone: no run starts
  /// over by itself.
  void refuse_if_checkpoints_are_gone() const;

  /// Writes run.json and config.yaml and opens the files that record steps, when the first step is
  /// known: 0 for a validation before the first one.
  void start(RunManifest manifest, int64_t first_step, int64_t total_steps);

  void record(const StepMetrics& metrics);
  /// Adds a traced step to trace.json.
  void record(const TracedStep& step);
  /// Records text samples in samples.jsonl.
  void record(int64_t step, const std::vector<TextSample>& samples);
  /// Prints a line of text above the progress line and writes it to the rank's log.
  void print(const std::string& line);
  void warn(const std::string& line);
  void update(const std::function<void(RunManifest&)>& change) { manifest_->update(change); }
  /// Ends the progress line, writes the outcome and the report. Returns the table of losses, the
  /// restarts and how much of the time was training.
  std::string finish(int exit_code, const std::string& reason);
  /// Writes the outcome of a run that ends by an error, as far as the disk lets it.
  void fail(int exit_code, const std::string& reason) noexcept;

 private:
  void admit(const std::string& path, const RunManifest& before, const RunManifest& now);
  void note_restart(RunManifest& manifest, int64_t first_step) const;
  void open_progress(int64_t total_steps);
  void follow();
  void end_following();
  void write_report() noexcept;
  EffectiveTime write_outcome(int exit_code, const std::string& reason,
                              const std::vector<StepMetrics>& metrics);

  const TrainRequest& request_;
  RunFolder folder_;
  std::optional<RunManifest> before_;
  /// The field of run.json that says what training starts from.
  std::string start_ = "the model's weights";
  std::set<std::string> noted_changes_;
  std::optional<ManifestFile> manifest_;
  std::optional<MetricsWriter> metrics_;
  std::optional<MetricsWriter> samples_;
  /// Opened by the first step that is traced.
  std::optional<TraceFile> trace_;
  int64_t first_step_ = 0;
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<CsvMonitor> csv_;
  std::optional<RunFollower> follower_;
  std::optional<ProgressLine> progress_;
  /// The person's terminal, when our output reaches it through the supervisor.
  OwnedFd terminal_;
  bool live_ = false;
};

/// Makes the manifest of a run that is about to start.
RunManifest make_manifest(const TrainRequest& request);

}  // namespace ftrun
