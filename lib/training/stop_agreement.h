#pragma once

#include "cluster/failure_summary.h"
#include "training/session.h"
#include "training/stop_signal.h"

namespace ftrun {

/// StopAgreement decides whether the run stops before its end. All ranks have the same answer at
/// the same point of the run: they vote, each with the signal that has reached it.
class StopAgreement {
 public:
  explicit StopAgreement(Session& session) : session_(session) {}

  /// The signal that stops the run; 0 while it goes on.
  int signal() const { return signal_; }
  bool reached() const { return signal_ != 0; }
  const char* name() const { return signal_name(signal_); }
  /// 0 for a run that comes to its end.
  int exit_code() const { return reached() ? stop_exit_code(signal_) : 0; }

  /// Adds this rank's vote; read_votes() gets those of all ranks.
  void add_vote(Votes& votes) const { add_stop_vote(stop_signal(), votes); }
  void read_votes(const Votes& votes) { signal_ = voted_signal(votes); }
  /// Collective: a vote by itself. True when the run stops.
  bool vote() {
    signal_ = session_.vote_to_stop(stop_signal());
    return reached();
  }

 private:
  Session& session_;
  int signal_ = 0;
};

}  // namespace ftrun
