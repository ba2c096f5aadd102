#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "exec/lanes.h"
#include "program/program.h"

namespace ftrun {

/// What a rank of a pipeline did in a training step until its decision, in seconds.
struct PipelineSeconds {
  /// From the begin of the step to its decision.
  double span = 0;
  /// Compute waited for transfers, and before the decision for all ranks' gradient norm.
  double waited_for_stages = 0;
  double waited_at_end = 0;
  /// By layer: forward, backward, input and weight gradients of all its micro-batches, with waits for
  /// anything but other stages.
  std::vector<std::array<double, 4>> layers;
};

/// Takes the times of the compute lane of a pipeline's program.
class PhaseClock {
 public:
  /// `program` is borrowed.
  explicit PhaseClock(const Program& program) : program_(program) {}

  /// A program of one stage has nothing to measure.
  bool is_on() const { return program_.stage.count > 1; }
  void begin(size_t layers);
  /// An instruction of the compute lane has run.
  void note(const Instr& instr, const Lanes::Waited& waited, double seconds);
  const PipelineSeconds& seconds() const { return seconds_; }

 private:
  const Program& program_;
  PipelineSeconds seconds_;
  std::chrono::steady_clock::time_point begin_;
  /// What instructions between those of layers belong to; null before the first.
  double* current_ = nullptr;
};

}  // namespace ftrun
