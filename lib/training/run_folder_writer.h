#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "checkpoint/checkpoint_manifest.h"
#include "inputs/train_request.h"
#include "report/csv_monitor.h"
#include "report/effective_time.h"
#include "report/metrics_writer.h"
#include "report/progress_line.h"
#include "report/run_folder.h"
#include "report/run_follower.h"
#include "report/run_manifest.h"
#include "report/tensorboard.h"
#include "report/text_samples.h"
#include "report/trace_file.h"

namespace ftrun {

/// RunFolderWriter writes everything that rank 0 reports about a run: metrics.jsonl, TensorBoard,
/// CSV, the progress line, run.json, and the report at the end. Before start() it writes only the
/// lock file to the run folder, so that a run whose model or data was refused can be started again
/// in the same folder.
class RunFolderWriter {
 public:
  /// Locks the run folder. Throws Error(kUsage) for a folder of another run, and
  /// Error(kEnvironment) for one that another process uses.
  explicit RunFolderWriter(const TrainRequest& request);

  const RunPaths& paths() const { return folder_.paths(); }
  /// Returns the manifest of the folder's earlier run, if this run continues it.
  const std::optional<RunManifest>& earlier_manifest() const { return earlier_manifest_; }

  /// Throws an Error if this run may not resume the run in the folder (check_resume), and reports
  /// other changes.
  void check_resumed_run(const RunManifest& current);
  /// Throws an Error if this run may not resume from the checkpoint in `folder`, according to the
  /// checkpoint's own record.
  void check_resumed_checkpoint(const std::string& folder, const CheckpointMeta& meta,
                                const RunManifest& current);
  /// Reports, and records for run.json, that training starts from the model's weights although a
  /// resume was requested.
  void record_new_start();
  /// Throws Error(kBadInput) if the checkpoints of a resumed run have disappeared. A run never
  /// starts over unless the user requests it.
  void refuse_if_checkpoints_are_gone() const;

  /// Writes run.json and config.yaml, and opens the files that record steps. Called once the first
  /// step is known; `first_step` is 0 if an evaluation comes before step 1.
  void start(RunManifest manifest, int64_t first_step, int64_t total_steps);

  /// Writes the step to metrics.jsonl, TensorBoard and CSV, shows the progress line, and records
  /// evaluations in run.json. Must follow start().
  void record_step(const StepMetrics& metrics);
  /// Adds a traced step to trace.json.
  void record_trace(const TracedStep& step);
  /// Records text samples in samples.jsonl.
  void record_texts(int64_t step, const std::vector<TextSample>& samples);
  /// Prints a line of text above the progress line and writes it to the rank's log.
  void print(const std::string& line);
  /// Prints a warning above the progress line, and writes it to the log.
  void warn(const std::string& line);
  void update_manifest(const std::function<void(RunManifest&)>& change) {
    manifest_->update(change);
  }
  /// Ends the progress line, and writes the outcome and the report. Returns a text with the table
  /// of losses, the restarts, and the effective training time.
  std::string finish(int exit_code, const std::string& reason);
  /// Writes the outcome of a run that fails, as far as the disk allows.
  void fail(int exit_code, const std::string& reason) noexcept;

 private:
  void check_and_report_changes(const std::string& path, const RunManifest& recorded,
                                const RunManifest& current);
  void record_restart(RunManifest& manifest, int64_t first_step) const;
  void open_progress(int64_t total_steps);
  void check_follower();
  void end_follower();
  void write_report() noexcept;
  EffectiveTime write_outcome(int exit_code, const std::string& reason,
                              const std::vector<StepMetrics>& metrics);

  const TrainRequest& request_;
  RunFolder folder_;
  std::optional<RunManifest> earlier_manifest_;
  /// The value of `start` in run.json: the state from which training starts.
  std::string start_state_ = "the model's weights";
  std::set<std::string> reported_changes_;
  std::optional<ManifestFile> manifest_;
  std::optional<MetricsWriter> metrics_;
  std::optional<MetricsWriter> samples_;
  /// The trace file, which the first traced step opens.
  std::optional<TraceFile> trace_;
  int64_t first_step_ = 0;
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<CsvMonitor> csv_;
  std::optional<RunFollower> follower_;
  std::optional<ProgressLine> progress_;
  /// The user's terminal, if the supervisor forwards this process's output to it.
  OwnedFd terminal_;
  bool is_live_ = false;
};

/// Makes the manifest of a run that is about to start.
RunManifest make_manifest(const TrainRequest& request);

}  // namespace ftrun
