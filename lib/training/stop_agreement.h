#pragma once

#include <functional>
#include <utility>

#include "cluster/failure_summary.h"
#include "training/stop_signal.h"

namespace ftrun {

/// StopAgreement decides whether the run stops before its end. All ranks have the same answer at
/// the same point of the run: they vote, each with the signal that has reached it.
class StopAgreement {
 public:
  /// `own`: the signal that has reached this rank, 0 for none. `together`, collective: what the
  /// ranks' signals come to.
  StopAgreement(std::function<int()> own, std::function<int(int signal)> together)
      : own_(std::move(own)), together_(std::move(together)) {}

  /// The signal that stops the run; 0 while it goes on.
  int signal() const { return signal_; }
  bool reached() const { return signal_ != 0; }
  const char* name() const { return signal_name(signal_); }
  /// 0 for a run that comes to its end.
  int exit_code() const { return reached() ? stop_exit_code(signal_) : 0; }

  /// Adds this rank's vote; read_votes() gets those of all ranks.
  void add_vote(Votes& votes) const { add_stop_vote(own_(), votes); }
  void read_votes(const Votes& votes) { signal_ = voted_signal(votes); }
  /// Collective: a vote by itself. True when the run stops.
  bool vote() {
    signal_ = together_(own_());
    return reached();
  }

 private:
  std::function<int()> own_;
  std::function<int(int)> together_;
  int signal_ = 0;
};

}  // namespace ftrun
