#pragma once

#include <memory>
#include <optional>
#include <string>

#include "exec/train.h"
#include "report/csv_monitor.h"
#include "report/manifest.h"
#include "report/metrics_writer.h"
#include "report/progress.h"
#include "report/run_folder.h"
#include "report/tensorboard.h"

namespace ftrun {

/// All that rank 0 tells the world of a run: metrics.jsonl, TensorBoard, CSV, the progress line,
/// run.json, the plot at the end.
class Recorder {
 public:
  /// Takes the run folder. With a resume, refuses a run whose manifest differs in what matters.
  /// Error(kUsage), Error(kEnvironment).
  Recorder(const TrainRequest& request, RunManifest manifest);

  const RunPaths& paths() const { return folder_.paths(); }

  /// Opens the files that steps are written to, when the first step is known.
  void start(int64_t first_step, int64_t total_steps);
  void record(const StepMetrics& metrics);
  /// A line of text above the progress line.
  void say(const std::string& line);
  void update(const std::function<void(RunManifest&)>& change) { manifest_.update(change); }
  /// Ends the progress line, draws the plot, writes the outcome. Returns the table of losses.
  std::string finish(int exit_code, const std::string& reason);

 private:
  const TrainRequest& request_;
  RunFolder folder_;
  ManifestFile manifest_;
  std::optional<MetricsWriter> metrics_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<CsvMonitor> csv_;
  std::optional<ProgressLine> progress_;
};

/// The manifest of a run that is about to start.
RunManifest make_manifest(const TrainRequest& request);

}  // namespace ftrun
