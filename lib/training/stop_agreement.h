#pragma once

#include <functional>
#include <utility>

#include "cluster/failure_summary.h"
#include "training/stop_signal.h"

namespace ftrun {

/// StopAgreement decides whether the run stops before its end. Each rank tells the others which
/// signal it has received, so all ranks reach the same decision at the same point of the run.
class StopAgreement {
 public:
  /// Stores two functions: `own_signal` returns the signal that this rank has received, or 0;
  /// `agree_on_signal` (collective) returns the signal on which all ranks stop, or 0.
  StopAgreement(std::function<int()> own_signal, std::function<int(int signal)> agree_on_signal)
      : own_signal_(std::move(own_signal)), agree_on_signal_(std::move(agree_on_signal)) {}

  /// Returns the signal that stops the run; 0 while it continues.
  int signal() const { return signal_; }
  bool reached() const { return signal_ != 0; }
  const char* signal_name() const { return ftrun::signal_name(signal_); }
  /// Returns the exit code of the stop; 0 for a run that reaches its end.
  int exit_code() const { return reached() ? stop_exit_code(signal_) : 0; }

  /// Adds this rank's flag; read_flags() receives the flags of all ranks.
  void add_flags(RankFlags& flags) const { add_stop_flag(own_signal_(), flags); }
  void read_flags(const RankFlags& flags) { signal_ = stop_signal_of(flags); }
  /// Collective: reaches the decision outside of a step. Returns true if the run stops.
  bool decide_outside_step() {
    signal_ = agree_on_signal_(own_signal_());
    return reached();
  }

 private:
  std::function<int()> own_signal_;
  std::function<int(int)> agree_on_signal_;
  int signal_ = 0;
};

}  // namespace ftrun
