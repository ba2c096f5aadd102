#pragma once

#include <string>

#include "inputs/run_data.h"
#include "inputs/run_inputs.h"
#include "training/loop_dependencies.h"
#include "training/run_journal.h"

namespace ftrun {

/// RunDataIdentity computes the fingerprints of a run's data on rank 0, in the background during
/// training. run.json and the checkpoints record them. A resumed run is refused if its data differ.
class RunDataIdentity : public DataIdentity {
 public:
  /// Keeps references to all arguments.
  RunDataIdentity(const TrainRequest& request, Session& session, RunJournal& journal)
      : request_(request), session_(session), journal_(journal) {}

  /// Sets the checkpoint from which the run resumes, and the fingerprint of the data on which it
  /// was trained ("" if unknown).
  void set_checkpoint(const std::string& folder, const std::string& fingerprint);
  bool is_resumed() const override { return !checkpoint_folder_.empty(); }
  /// Starts computing the fingerprints on rank 0; the data must outlive this object.
  void start(const RunData& data);
  void record_known_fingerprints() override;
  void await_fingerprints_before_saving(StopAgreement& stop) override;
  void await_fingerprints(StopAgreement& stop) override;

  const std::string& training_fingerprint() const override { return train_fingerprint_; }

 private:
  void keep_recorded_fingerprints();
  bool await_briefly();
  void record_fingerprint(const std::string& role, const std::string& digest);
  void refuse_other_data(const std::string& path, const std::string& recorded,
                         const std::string& current) const;

  const TrainRequest& request_;
  Session& session_;
  RunJournal& journal_;
  DataFingerprints fingerprints_;
  std::string train_fingerprint_;
  bool has_awaited_ = false;
  /// The folder of the checkpoint from which the run resumes; "" for a new run.
  std::string checkpoint_folder_;
  std::string checkpoint_fingerprint_;
};

}  // namespace ftrun
