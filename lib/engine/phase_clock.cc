#include "engine/phase_clock.h"

namespace ftrun {

void PhaseClock::begin() {
  seconds_ = {};
  decided_ = false;
  current_ = &seconds_.before;
}

void PhaseClock::record_instr(const Instr& instr, const Lanes::Waited& waited, double seconds) {
  if (!is_on() || decided_) return;
  if (instr.kind == InstrKind::kDecide) {
    decided_ = true;
    seconds_.waited_at_end = waited.stages + waited.other;
    return;
  }
  if (instr.runs_ops() && instr.layer >= 0)
    current_ = &seconds_.layers[{instr.kind, instr.layer, instr.micro_batch}];
  if (instr.kind == InstrKind::kGradientNorm) current_ = &seconds_.after;
  seconds_.waited_for_stages += waited.stages;
  *current_ += seconds + waited.other;
}

}  // namespace ftrun
