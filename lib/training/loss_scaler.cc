#include "training/loss_scaler.h"

#include <algorithm>
#include <cmath>

namespace ftrun {

LossScaler::LossScaler(const Config& config)
    : is_enabled_(config.fp16.enabled),
      is_dynamic_(config.fp16.enabled && config.fp16.loss_scale == 0),
      uses_hysteresis_(config.zero.stage > 0),
      config_(config.fp16) {
  if (!is_enabled_) return;
  state_.scale = is_dynamic_ ? std::exp2(static_cast<double>(config_.initial_scale_power))
                             : config_.loss_scale;
  state_.hysteresis = config_.hysteresis;
}

bool LossScaler::expects_overflow() const {
  return is_dynamic_ && state_.scale > config_.min_loss_scale;
}

void LossScaler::shrink() {
  if (uses_hysteresis_ && config_.hysteresis != 1 && state_.hysteresis != 1) {
    --state_.hysteresis;
    return;
  }
  is_exhausted_ = uses_hysteresis_ && state_.scale == config_.min_loss_scale;
  state_.scale = std::max(state_.scale / 2, config_.min_loss_scale);
}

void LossScaler::update(bool overflow) {
  if (!is_dynamic_) return;
  is_exhausted_ = false;
  if (overflow) {
    shrink();
    state_.last_overflow = state_.iteration;
  } else {
    if (config_.consecutive_hysteresis) state_.hysteresis = config_.hysteresis;
    const int64_t clean = state_.iteration - state_.last_overflow - 1;
    if (clean > 0 && clean % config_.loss_scale_window == 0) {
      if (!config_.consecutive_hysteresis) state_.hysteresis = config_.hysteresis;
      state_.scale *= 2;
    }
  }
  ++state_.iteration;
}

std::optional<LossScalerState> LossScaler::state() const {
  if (!is_enabled_) return std::nullopt;
  return state_;
}

void LossScaler::restore(const LossScalerState& state) {
  if (is_dynamic_) state_ = state;
}

}  // namespace ftrun
