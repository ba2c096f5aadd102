#pragma once

#include <functional>
#include <utility>

#include "cluster/failure_summary.h"
#include "training/stop_signal.h"

namespace ftrun {

/// StopAgreement decides whether the run stops before its end. Each rank votes with the signal that
/// it has received, so all ranks reach the same decision at the same point of the run.
class StopAgreement {
 public:
  /// Stores two functions: `own_signal` returns the signal that this rank has received, or 0;
  /// `combine_votes` (collective) returns the signal that the votes of all ranks select.
  StopAgreement(std::function<int()> own_signal, std::function<int(int signal)> combine_votes)
      : own_signal_(std::move(own_signal)), combine_votes_(std::move(combine_votes)) {}

  /// Returns the signal that stops the run; 0 while it continues.
  int signal() const { return signal_; }
  bool reached() const { return signal_ != 0; }
  const char* name() const { return signal_name(signal_); }
  /// Returns the exit code of the stop; 0 for a run that reaches its end.
  int exit_code() const { return reached() ? stop_exit_code(signal_) : 0; }

  /// Adds this rank's vote; read_votes() receives the votes of all ranks.
  void add_vote(Votes& votes) const { add_stop_vote(own_signal_(), votes); }
  void read_votes(const Votes& votes) { signal_ = voted_signal(votes); }
  /// Collective: holds a vote outside of a step. Returns true if the run stops.
  bool vote() {
    signal_ = combine_votes_(own_signal_());
    return reached();
  }

 private:
  std::function<int()> own_signal_;
  std::function<int(int)> combine_votes_;
  int signal_ = 0;
};

}  // namespace ftrun
