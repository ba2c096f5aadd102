#pragma once

#include <compare>
#include <cstdint>
#include <map>

#include "engine/lanes.h"
#include "program/program.h"

namespace ftrun {

/// LayerPhase is one phase of one micro-batch in one layer.
struct LayerPhase {
  /// The kind of instruction of the phase: kForward, kBackward, kInputGrad or kWeightGrad.
  InstrKind kind = InstrKind::kForward;
  int32_t layer = 0;
  int32_t micro_batch = 0;
  auto operator<=>(const LayerPhase&) const = default;
};

/// PipelineSeconds holds how a pipeline rank's compute lane spent a training step from its
/// beginning to its decision, in seconds. The sum of its members is that time.
struct PipelineSeconds {
  /// Seconds of waits for joint work of ranks of several stages and, before the decision, for all
  /// ranks' gradient norm.
  double stage_wait_seconds = 0;
  double end_wait_seconds = 0;
  /// Seconds of computing, and of waits for anything but other stages: before the first layer, in
  /// each layer, and from the gradient norm on.
  double before_layers_seconds = 0;
  std::map<LayerPhase, double> layer_seconds;
  double after_layers_seconds = 0;
};

/// PhaseClock measures the compute lane of a pipeline's program.
class PhaseClock {
 public:
  /// Borrows `program`.
  explicit PhaseClock(const Program& program) : program_(program) {}

  void begin_run();
  /// Adds an instruction of the compute lane that has run.
  void record_instr(const Instr& instr, const LaneThreads::ComputeWaits& waits, double seconds);
  const PipelineSeconds& seconds() const { return seconds_; }

 private:
  /// Returns whether there is anything to measure: a program of one stage has no pipeline times.
  bool has_pipeline() const { return program_.stage.count > 1; }

  const Program& program_;
  PipelineSeconds seconds_;
  bool decided_ = false;
  /// The member of seconds_ to which the seconds of the next instruction are added, unless it
  /// begins another phase of a layer: the current phase, `before_layers_seconds` or
  /// `after_layers_seconds`.
  double* current_ = &seconds_.before_layers_seconds;
};

}  // namespace ftrun
