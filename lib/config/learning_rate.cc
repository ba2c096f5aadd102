#include "config/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"

namespace ftrun {
namespace {

// The formulas below use `s` for the section scheduler. `update` counts optimizer steps from 1;
// `deepspeed_step` begins at -1, with the initial value.

double to_double(int64_t value) {
  return static_cast<double>(value);
}

/// Returns the factor of DeepSpeed's warm-up schedules at a step from 0 on. It rises from 0 at step
/// 0, and is 1 from step w = max(2, warmup_num_steps) on; the log shape, log(step + 1) / log(w),
/// reaches 1 one step earlier.
double warmup_factor(const SchedulerConfig& s, int64_t deepspeed_step) {
  const int64_t steps = std::max<int64_t>(2, s.warmup_num_steps);
  if (deepspeed_step >= steps) return 1.0;
  return s.warmup_type == WarmupShape::kLog
             ? std::log(to_double(deepspeed_step + 1)) / std::log(to_double(steps))
             : to_double(deepspeed_step) / to_double(steps);
}

double warmup_rate(const SchedulerConfig& s, int64_t deepspeed_step) {
  if (deepspeed_step < 0) return s.warmup_min_lr;
  return s.warmup_min_lr + (s.warmup_max_lr - s.warmup_min_lr) * warmup_factor(s, deepspeed_step);
}

double warmup_decay_rate(const SchedulerConfig& s, int64_t deepspeed_step) {
  const int64_t steps = std::max<int64_t>(2, s.warmup_num_steps);
  if (deepspeed_step < steps) return warmup_rate(s, deepspeed_step);
  const double remaining_share = to_double(s.total_num_steps - deepspeed_step) /
                                 to_double(std::max<int64_t>(1, s.total_num_steps - steps));
  return s.warmup_min_lr + (s.warmup_max_lr - s.warmup_min_lr) * std::max(0.0, remaining_share);
}

double warmup_cosine_rate(const SchedulerConfig& s, double lr, int64_t deepspeed_step) {
  if (deepspeed_step < 0) return 0.0;
  const int64_t steps = std::max<int64_t>(2, s.warmup_num_steps);
  if (deepspeed_step < steps)
    return lr *
           (s.warmup_min_ratio + (1.0 - s.warmup_min_ratio) * warmup_factor(s, deepspeed_step));
  const double p = std::min(1.0, to_double(deepspeed_step - steps + 1) /
                                     to_double(std::max<int64_t>(1, s.total_num_steps - steps)));
  const double ratio =
      s.cos_min_ratio + (1.0 - s.cos_min_ratio) * (1.0 + std::cos(std::numbers::pi * p)) / 2.0;
  return lr * std::max(0.0, ratio);
}

double range_test_rate(const SchedulerConfig& s, int64_t deepspeed_step) {
  if (deepspeed_step < 0) return s.lr_range_test_min_lr;
  double x = to_double(deepspeed_step + 1) / to_double(s.lr_range_test_step_size);
  if (s.lr_range_test_staircase) x = std::floor(x);
  return s.lr_range_test_min_lr * (1.0 + s.lr_range_test_step_rate * x);
}

/// Returns the relative height of OneCycle's cycle at batch b: 0 at both ends, 1 at the peak.
double cycle_height(const SchedulerConfig& s, int64_t b) {
  const double first = to_double(s.cycle_first_step_size);
  const double second = to_double(s.cycle_second_step_size);
  const double total = first + second;
  if (s.cycle_first_stair_count > 0 || s.cycle_second_stair_count > 0) {
    const double c = std::fmod(to_double(b), total);
    const bool rising = c <= first;
    const double stairs =
        to_double(rising ? s.cycle_first_stair_count : s.cycle_second_stair_count);
    const double height = rising ? c / first : (total - c) / second;
    return stairs > 0 ? std::floor(height * stairs) / stairs : height;
  }
  const double x = to_double(b) / total - std::floor(to_double(b) / total);
  const double peak = first / total;
  return x <= peak ? x / peak : (x - 1.0) / (peak - 1.0);
}

ScheduledRate one_cycle_rate(const SchedulerConfig& s, int64_t deepspeed_step) {
  ScheduledRate rate;
  if (s.cycle_momentum) rate.beta2 = 0.99;
  const int64_t total = s.cycle_first_step_size + s.cycle_second_step_size;
  if (deepspeed_step < total) {
    const double height = deepspeed_step < 0 ? 0.0 : cycle_height(s, deepspeed_step + 1);
    rate.learning_rate = s.cycle_min_lr + (s.cycle_max_lr - s.cycle_min_lr) * height;
    // DeepSpeed's constructor sets the smallest momentum, which the first step uses.
    if (s.cycle_momentum)
      rate.beta1 = deepspeed_step < 0
                       ? s.cycle_min_mom
                       : s.cycle_max_mom - (s.cycle_max_mom - s.cycle_min_mom) * height;
    return rate;
  }
  const double d = s.decay_step_size > 0
                       ? to_double(deepspeed_step - total + 1) / to_double(s.decay_step_size)
                       : 0.0;
  rate.learning_rate = s.cycle_min_lr / (1.0 + s.decay_lr_rate * d);
  if (s.cycle_momentum) rate.beta1 = s.cycle_max_mom * (1.0 + s.decay_mom_rate * d);
  return rate;
}

/// Returns the height, from 0 to 1, of a cosine that begins at 1, after part p (0 to 1) of its
/// `waves` waves.
double cosine_height(double waves, double p) {
  return (1.0 + std::cos(std::numbers::pi * (2.0 * waves) * p)) / 2.0;
}

double inverse_sqrt_rate(const SchedulerConfig& s, double lr, int64_t after_warmup) {
  const int64_t warmup = s.warmup_num_steps;
  const int64_t scale = s.timescale > 0 ? s.timescale : warmup > 0 ? warmup : 10'000;
  return lr / std::sqrt(to_double(after_warmup + scale) / to_double(scale));
}

/// Computes a schedule of transformers `steps` steps after its linear warm-up.
double rate_after_warmup(const SchedulerConfig& s, double lr, int64_t steps) {
  const int64_t all_steps = std::max<int64_t>(1, s.total_num_steps - s.warmup_num_steps);
  const double p = std::min(1.0, to_double(steps) / to_double(all_steps));
  const double lowest = s.min_lr_rate > 0 ? lr * s.min_lr_rate : s.min_lr;
  const auto falls_to = [&](double end, double share_left) {
    return end + (lr - end) * share_left;
  };
  switch (s.type) {
    case SchedulerType::kConstant:
      return lr;
    case SchedulerType::kLinear:
      return falls_to(lowest, 1.0 - p);
    case SchedulerType::kCosine:
      return falls_to(lowest, cosine_height(0.5, p));
    case SchedulerType::kCosineWithRestarts:
      return falls_to(0.0, p >= 1.0 ? 0.0 : cosine_height(0.5, std::fmod(s.num_cycles * p, 1.0)));
    case SchedulerType::kPolynomial:
      return falls_to(s.lr_end, std::pow(1.0 - p, s.power));
    case SchedulerType::kInverseSqrt:
      return inverse_sqrt_rate(s, lr, steps);
    case SchedulerType::kCosineWithMinLr:
      return falls_to(lowest, cosine_height(s.num_cycles, p));
    case SchedulerType::kWarmupStableDecay:
    case SchedulerType::kWarmupLR:
    case SchedulerType::kWarmupDecayLR:
    case SchedulerType::kWarmupCosineLR:
    case SchedulerType::kOneCycle:
    case SchedulerType::kLRRangeTest:
    case SchedulerType::kTorch:
      break;
  }
  bug("this schedule has its own warm-up");
}

/// Computes a schedule of transformers with a linear warm-up at an update (from 1; transformers
/// counts from 0).
double linear_warmup_rate(const SchedulerConfig& s, double lr, int64_t update) {
  const int64_t step = update - 1, warmup = s.warmup_num_steps;
  return step < warmup ? lr * to_double(step) / to_double(std::max<int64_t>(1, warmup))
                       : rate_after_warmup(s, lr, step - warmup);
}

/// Computes the schedule warmup_stable_decay of transformers at an update (from 1).
double stable_decay_rate(const SchedulerConfig& s, double lr, int64_t update) {
  const int64_t step = update - 1, warmup = s.warmup_num_steps;
  const int64_t stable =
      s.num_stable_steps >= 0 ? s.num_stable_steps : s.total_num_steps - warmup - s.num_decay_steps;
  const auto above_lowest = [&](double share) {
    return lr * (share * (1.0 - s.min_lr_ratio) + s.min_lr_ratio);
  };
  if (step < warmup) {
    const double p = to_double(step) / to_double(warmup);
    return above_lowest(s.warmup_type == WarmupShape::kCosine         ? 1.0 - cosine_height(0.5, p)
                        : s.warmup_type == WarmupShape::kOneMinusSqrt ? 1.0 - std::sqrt(1.0 - p)
                                                                      : p);
  }
  if (step < warmup + stable) return lr;
  if (step >= warmup + stable + s.num_decay_steps) return above_lowest(0.0);
  const double p = to_double(step - warmup - stable) / to_double(s.num_decay_steps);
  return above_lowest(s.decay_type == DecayShape::kLinear         ? 1.0 - p
                      : s.decay_type == DecayShape::kOneMinusSqrt ? 1.0 - std::sqrt(p)
                                                                  : cosine_height(s.num_cycles, p));
}

}  // namespace

ScheduledRate scheduled_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                             int64_t update) {
  require(update >= 1, "optimizer steps count from 1");
  const int64_t deepspeed_step = update - 2;
  switch (scheduler.type) {
    case SchedulerType::kConstant:
    case SchedulerType::kLinear:
    case SchedulerType::kCosine:
    case SchedulerType::kCosineWithRestarts:
    case SchedulerType::kPolynomial:
    case SchedulerType::kInverseSqrt:
    case SchedulerType::kCosineWithMinLr:
      return {linear_warmup_rate(scheduler, optimizer.lr, update), {}, {}};
    case SchedulerType::kWarmupStableDecay:
      return {stable_decay_rate(scheduler, optimizer.lr, update), {}, {}};
    case SchedulerType::kWarmupLR:
      return {warmup_rate(scheduler, deepspeed_step), {}, {}};
    case SchedulerType::kWarmupDecayLR:
      return {warmup_decay_rate(scheduler, deepspeed_step), {}, {}};
    case SchedulerType::kWarmupCosineLR:
      return {warmup_cosine_rate(scheduler, optimizer.lr, deepspeed_step), {}, {}};
    case SchedulerType::kOneCycle:
      return one_cycle_rate(scheduler, deepspeed_step);
    case SchedulerType::kLRRangeTest:
      return {range_test_rate(scheduler, deepspeed_step), {}, {}};
    case SchedulerType::kTorch:
      break;
  }
  bug("this schedule is refused when the config is read");
}

double final_learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer) {
  require(traits_of(scheduler.type).has_last_step, "the schedule has a last step");
  // The formulas of DeepSpeed and transformers have left warm-up and decay behind two steps after
  // the longer of the two; DeepSpeed's warm-up takes at least two steps.
  const int64_t longer =
      std::max({scheduler.total_num_steps, scheduler.warmup_num_steps, int64_t{2}});
  const int64_t update = std::min(longer, std::numeric_limits<int64_t>::max() - 2) + 2;
  return scheduled_rate(scheduler, optimizer, update).learning_rate;
}

}  // namespace ftrun
