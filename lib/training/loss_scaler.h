#pragma once

#include <optional>

#include "checkpoint/checkpoint_manifest.h"
#include "config/config.h"

namespace ftrun {

/// LossScaler computes the loss scale of fp16 training exactly as DeepSpeed does: at stages 1 to 3
/// with hysteresis (DynamicLossScaler), at stage 0 without (FP16_Optimizer). There is one
/// difference: gradients are always divided by the scale with which they were computed. Without
/// fp16 the scale is 1.
class LossScaler {
 public:
  explicit LossScaler(const Config& config);

  double scale() const { return state_.scale; }
  /// Returns whether an overflow can still reduce the scale. Values that are not finite are then
  /// expected.
  bool expects_overflow() const;

  /// Updates the scale after a step.
  void update(bool overflow);
  /// Returns whether the last step overflowed at the smallest scale. In this case DeepSpeed stops
  /// the run at stages 1 to 3.
  bool is_exhausted() const { return is_exhausted_; }

  /// Returns the state for checkpoints; nothing without fp16.
  std::optional<LossScalerState> state() const;
  void restore(const LossScalerState& state);

 private:
  void shrink();

  bool is_enabled_ = false;
  bool is_dynamic_ = false;
  bool uses_hysteresis_ = false;
  bool is_exhausted_ = false;
  Fp16Config config_;
  LossScalerState state_;
};

}  // namespace ftrun
