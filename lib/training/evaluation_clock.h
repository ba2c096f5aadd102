#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "config/config.h"
#include "engine/rank_flags.h"

namespace ftrun {

/// EvaluationClock decides when evaluations are due: by the number of steps, and by the clock of
/// rank 0, which all ranks follow.
class EvaluationClock {
 public:
  /// Keeps a reference to the config. `clock` returns the seconds since some fixed moment.
  EvaluationClock(const EvaluationConfig& config, bool is_first, std::function<double()> clock)
      : config_(config), is_first_(is_first), clock_(std::move(clock)), last_start_(clock_()) {}

  /// Adds rank 0's flag; read_flags() receives the flags of all ranks.
  void add_flags(RankFlags& flags) const;
  void read_flags(const RankFlags& flags) {
    is_due_by_time_ = flags.count_of(RankFlag::kEvaluationDue) > 0;
  }

  /// Returns whether an evaluation is due after `step`: by the interval, by the clock, or because
  /// it is the last of `total_steps`. The caller handles a run that ends earlier for another
  /// reason.
  bool is_due(int64_t step, int64_t total_steps) const;
  void restart();

 private:
  const EvaluationConfig& config_;
  const bool is_first_;
  std::function<double()> clock_;
  bool is_due_by_time_ = false;
  double last_start_;
};

}  // namespace ftrun
