#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/step_run.h"
#include "report/run_manifest.h"
#include "report/step_metrics.h"
#include "training/loop_dependencies.h"
#include "training/run_folder_writer.h"
#include "training/session.h"
#include "training/training_progress.h"

namespace ftrun {

class Executor;

/// RunJournal prints and records what a run reports: rank 0 has a RunFolderWriter for the run
/// folder and the terminal. On other ranks it writes only debug lines to the rank's log. Callers
/// need not distinguish ranks.
class RunJournal : public Journal {
 public:
  /// OpenLog is a function that opens the log of this rank.
  using OpenLog = std::function<void(const LogOptions&)>;

  /// Keeps references to the request and the session. `open_log` opens this rank's log.
  RunJournal(const TrainRequest& request, Session& session, OpenLog open_log = start_log)
      : request_(request), session_(session), open_log_(std::move(open_log)) {}

  /// Collective: opens the run folder on rank 0. Throws the errors of RunFolderWriter.
  void open_folder();
  /// Collective: opens the folder for writing. `describe` is called on rank 0.
  void open(const std::function<RunManifest()>& describe, int64_t steps_done, int64_t total_steps);

  /// Returns the writer of the run folder; null on ranks other than 0, and before the folder is
  /// locked.
  RunFolderWriter* folder_writer() const { return folder_writer_.get(); }
  void print(const std::string& line) override;
  void warn(const std::string& line) override;
  void update_manifest(const std::function<void(RunManifest&)>& change) override;
  void update_manifest_collectively(const std::string& what,
                                    const std::function<void(RunManifest&)>& change) override;
  void record_step(const StepMetrics& metrics) override;
  void record_trace(const TracedStep& step) override;
  void record_texts(int64_t step, const std::vector<TextSample>& samples);

  void record_first_batch() override;
  /// Sets the executor whose measured times print_step_details() prints. Keeps a reference to it.
  void set_timed_executor(const Executor& executor) { executor_ = &executor; }
  void print_step_details(const TrainingProgress& progress, const StepRun& step,
                          const StepMetrics& metrics) override;
  void show_phase(const std::string& what) override { session_.show_phase(what); }
  /// Ends the record of the run on rank 0: writes the outcome, and prints the table of losses on
  /// standard output.
  void finish(int exit_code, const std::string& reason);
  /// Records the failure of a run, as far as the disk allows.
  void fail(int exit_code, const std::string& reason) noexcept;

 private:
  const TrainRequest& request_;
  Session& session_;
  const OpenLog open_log_;
  std::unique_ptr<RunFolderWriter> folder_writer_;
  const Executor* executor_ = nullptr;
  bool has_recorded_first_batch_ = false;
};

}  // namespace ftrun
