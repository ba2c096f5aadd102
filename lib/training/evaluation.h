#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"
#include "engine/setup.h"
#include "plan/run_data.h"
#include "report/step_metrics.h"
#include "training/session.h"
#include "training/stop_agreement.h"

namespace ftrun {

/// Collective: loss and accuracy over the counted tokens of the rows of each set that the config
/// asks for; nothing when the ranks agreed to stop before all of them were read: they vote with
/// each round's loss. A set of which no token counts has no value; Error(kBadInput) where
/// export.which: best goes by it. The same figures on every rank.
std::optional<std::vector<EvaluationResult>> evaluate_sets(const Config& config, TrainingSetup& setup,
                                                           const std::vector<NamedSamples>& sets,
                                                           StopAgreement& stop);

/// EvaluationClock says when evaluations are due by steps and by the clock of rank 0, which all
/// ranks follow.
class EvaluationClock {
 public:
  EvaluationClock(const Config& config, const Session& session) : config_(config.train.evaluation), session_(session) {}

  /// Adds rank 0's vote; read_votes() gets those of all ranks.
  void add_vote(Votes& votes) const;
  void read_votes(const Votes& votes) { due_by_time_ = votes.of(Vote::kEvaluationDue) > 0; }

  bool is_due(int64_t step, int64_t last_step) const;
  void begin();

 private:
  const EvaluationConfig& config_;
  const Session& session_;
  bool due_by_time_ = false;
  std::chrono::steady_clock::time_point last_begun_ = std::chrono::steady_clock::now();
};

}  // namespace ftrun
