#include "exec/phase_clock.h"

#include "base/clock.h"

namespace ftrun {
namespace {

/// Index in PipelineSeconds::layers[l].
size_t phase_of(InstrKind kind) {
  return static_cast<size_t>(kind) - static_cast<size_t>(InstrKind::kForward);
}

}  // namespace

void PhaseClock::begin(size_t layers) {
  if (!is_on()) return;
  seconds_ = {};
  seconds_.layers.resize(layers);
  current_ = nullptr;
  begin_ = std::chrono::steady_clock::now();
}

void PhaseClock::note(const Instr& instr, const Lanes::Waited& waited, double seconds) {
  if (!is_on() || seconds_.span > 0) return;
  if (instr.kind == InstrKind::kDecide) {
    seconds_.span = seconds_since(begin_) - seconds;
    seconds_.waited_at_end = waited.links + waited.other;
    return;
  }
  seconds_.waited_for_stages += waited.links;
  if (instr.runs_list() && instr.layer >= 0)
    current_ = &seconds_.layers[static_cast<size_t>(instr.layer)][phase_of(instr.kind)];
  if (instr.kind == InstrKind::kGradientNorm) current_ = nullptr;
  if (current_ != nullptr) *current_ += seconds + waited.other;
}

}  // namespace ftrun
