#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "checkpoint/manifest.h"
#include "exec/run_journal.h"
#include "exec/session.h"
#include "exec/setup.h"
#include "exec/stop_agreement.h"
#include "exec/training_progress.h"

namespace ftrun {

/// The checkpoint that a run goes on from.
struct ResumedRun {
  std::string folder;
  CheckpointMeta meta;
};

/// Brings the model's state into memory when a run begins, saves it while it trains, and exports
/// the weights at its end. Every call is collective.
class Checkpointer {
 public:
  /// All borrowed.
  Checkpointer(const TrainRequest& request, Session& session, TrainingSetup& setup,
               RunJournal& journal);

  /// Reads the model's weights, or, where --resume finds one, the state of a checkpoint of a run
  /// that this one may continue; `describe` gives this run's manifest and is asked on rank 0.
  std::optional<ResumedRun> load(const std::function<RunManifest()>& describe);

  /// Whether the config asks for a checkpoint after this step.
  bool is_due(int64_t step) const;
  /// Whether the state after this step has been saved.
  bool has_saved(int64_t step) const { return saved_step_ == step; }
  /// Nothing where it has been saved. `data_fingerprint` matters on rank 0; "" where it is not
  /// known.
  void save(const TrainingProgress& progress, const std::string& data_fingerprint);

  /// Writes the weights in the format of Hugging Face, unless the ranks agree to stop meanwhile.
  void export_model(StopAgreement& stop);

 private:
  bool finds_checkpoint(const std::function<RunManifest()>& describe);
  ResumedRun resume(const std::string& folder, const std::function<RunManifest()>& describe);
  CheckpointMeta meta_of(const TrainingProgress& progress,
                         const std::string& data_fingerprint) const;

  const TrainRequest& request_;
  const Config& config_;
  Session& session_;
  TrainingSetup& setup_;
  RunJournal& journal_;
  int64_t saved_step_ = -1;
};

}  // namespace ftrun
