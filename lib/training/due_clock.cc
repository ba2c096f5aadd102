#include "training/due_clock.h"

namespace ftrun {

void DueClock::add_flags(RankFlags& flags) const {
  if (!is_first_ || interval_.minutes == 0) return;
  if (clock_() - last_start_ >= 60 * interval_.minutes) flags.add(flag_);
}

bool DueClock::is_due(int64_t step) const {
  return is_due_by_time_ || (interval_.steps > 0 && step % interval_.steps == 0);
}

}  // namespace ftrun
