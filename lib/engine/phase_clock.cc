#include "engine/phase_clock.h"

namespace ftrun {

void PhaseClock::begin_run() {
  seconds_ = {};
  decided_ = false;
  current_ = &seconds_.before_layers_seconds;
}

void PhaseClock::record_instr(const Instr& instr, const LaneThreads::ComputeWaits& waits,
                              double seconds) {
  if (!has_pipeline() || decided_) return;
  if (instr.kind == InstrKind::kDecide) {
    decided_ = true;
    seconds_.end_wait_seconds = waits.stage_seconds + waits.other_seconds;
    return;
  }
  if (instr.runs_ops() && instr.layer >= 0)
    current_ = &seconds_.layer_seconds[{instr.kind, instr.layer, instr.micro_batch}];
  if (instr.kind == InstrKind::kGradientNorm) current_ = &seconds_.after_layers_seconds;
  seconds_.stage_wait_seconds += waits.stage_seconds;
  *current_ += seconds + waits.other_seconds;
}

}  // namespace ftrun
