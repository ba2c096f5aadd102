#include "training/due_clock.h"

namespace ftrun {

void DueClock::add_flags(RankFlags& flags) const {
  if (!is_first_ || every_.minutes == 0) return;
  if (clock_() - last_start_ >= 60 * every_.minutes) flags.add(flag_);
}

bool DueClock::is_due(int64_t step) const {
  return is_due_by_time_ || (every_.steps > 0 && step % every_.steps == 0);
}

}  // namespace ftrun
