#include "training/evaluation_clock.h"

namespace ftrun {

void EvaluationClock::add_flags(RankFlags& flags) const {
  if (!is_first_ || config_.every_minutes == 0) return;
  if (clock_() - last_start_ >= 60 * config_.every_minutes) flags.add(RankFlag::kEvaluationDue);
}

bool EvaluationClock::is_due(int64_t step, int64_t total_steps) const {
  return is_due_by_time_ || step == total_steps || (config_.every > 0 && step % config_.every == 0);
}

void EvaluationClock::restart() {
  is_due_by_time_ = false;
  last_start_ = clock_();
}

}  // namespace ftrun
