#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "engine/rank_flags.h"

namespace ftrun {

/// DueInterval says how often the config asks for something; 0: it is not due by that measure.
struct DueInterval {
  int64_t steps = 0;
  double minutes = 0;
};

/// DueClock decides when evaluations or checkpoints are due: by the number of steps, and by the
/// clock of rank 0, which all ranks follow.
class DueClock {
 public:
  /// `flag` is the flag by which rank 0 tells all ranks that the minutes are over. `clock` returns
  /// the seconds since some fixed moment.
  DueClock(DueInterval interval, RankFlag flag, bool is_first, std::function<double()> clock)
      : interval_(interval),
        flag_(flag),
        is_first_(is_first),
        clock_(std::move(clock)),
        last_start_(clock_()) {}

  /// Adds rank 0's flag; read_flags() receives the flags of all ranks.
  void add_flags(RankFlags& flags) const;
  void read_flags(const RankFlags& flags) { is_due_by_time_ = flags.count_of(flag_) > 0; }

  /// Returns whether something is due after `step`.
  bool is_due(int64_t step) const;
  /// Marks what is due by time as begun, until the flags of the next step are read.
  void mark_begun() { is_due_by_time_ = false; }
  /// Counts the minutes from `time` of the clock.
  void restart(double time) { last_start_ = time; }

 private:
  const DueInterval interval_;
  const RankFlag flag_;
  const bool is_first_;
  std::function<double()> clock_;
  bool is_due_by_time_ = false;
  double last_start_;
};

}  // namespace ftrun
