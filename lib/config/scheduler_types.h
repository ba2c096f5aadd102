#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/enum_names.h"

namespace ftrun {

/// SchedulerType is the key scheduler.type: the schedule of the learning rate.
enum class SchedulerType : uint8_t {
  // The types of transformers have a linear warm-up from 0 (kWarmupStableDecay: one of a chosen
  // shape, from its lowest rate).
  kConstant,
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kPolynomial,
  kInverseSqrt,
  kCosineWithMinLr,
  kWarmupStableDecay,
  // The types of DeepSpeed.
  kWarmupLR,
  kWarmupDecayLR,
  kWarmupCosineLR,
  kOneCycle,
  kLRRangeTest,
  kTorch,  // a class of torch.optim.lr_scheduler, which is refused
};

/// SchedulerOrigin is the program that has a type and whose rules its keys follow. DeepSpeed's
/// types need a section scheduler.params.
enum class SchedulerOrigin : uint8_t { kTransformers, kDeepSpeed, kPyTorch };

/// LearningRateScheduleTraits holds what the reading of a config needs to know about a type. The
/// formula of the type is in config/learning_rate.cc.
struct LearningRateScheduleTraits {
  SchedulerType type{};
  std::string_view name;        // in scheduler.type
  std::string_view alias = "";  // another name
  SchedulerOrigin origin = SchedulerOrigin::kTransformers;
  /// Says whether the rate rises over warmup_num_steps.
  bool warms_up = false;
  /// Says whether the rate falls until total_num_steps, by default the steps of the run.
  bool has_last_step = false;
  /// The type with the same curve that can begin at the full rate, for DeepSpeed's types with a
  /// warm-up.
  SchedulerType without_warmup = type;
};

inline constexpr LearningRateScheduleTraits kLearningRateScheduleTraits[] = {
    {.type = SchedulerType::kConstant,
     .name = "constant",
     .alias = "constant_with_warmup",
     .warms_up = true},
    {.type = SchedulerType::kLinear, .name = "linear", .warms_up = true, .has_last_step = true},
    {.type = SchedulerType::kCosine, .name = "cosine", .warms_up = true, .has_last_step = true},
    {.type = SchedulerType::kCosineWithRestarts,
     .name = "cosine_with_restarts",
     .warms_up = true,
     .has_last_step = true},
    {.type = SchedulerType::kPolynomial,
     .name = "polynomial",
     .warms_up = true,
     .has_last_step = true},
    {.type = SchedulerType::kInverseSqrt, .name = "inverse_sqrt", .warms_up = true},
    {.type = SchedulerType::kCosineWithMinLr,
     .name = "cosine_with_min_lr",
     .warms_up = true,
     .has_last_step = true},
    {.type = SchedulerType::kWarmupStableDecay,
     .name = "warmup_stable_decay",
     .alias = "wsd",
     .warms_up = true,
     .has_last_step = true},
    {.type = SchedulerType::kWarmupLR,
     .name = "WarmupLR",
     .origin = SchedulerOrigin::kDeepSpeed,
     .warms_up = true,
     .without_warmup = SchedulerType::kConstant},
    {.type = SchedulerType::kWarmupDecayLR,
     .name = "WarmupDecayLR",
     .origin = SchedulerOrigin::kDeepSpeed,
     .warms_up = true,
     .has_last_step = true,
     .without_warmup = SchedulerType::kLinear},
    {.type = SchedulerType::kWarmupCosineLR,
     .name = "WarmupCosineLR",
     .origin = SchedulerOrigin::kDeepSpeed,
     .warms_up = true,
     .has_last_step = true,
     .without_warmup = SchedulerType::kCosine},
    {.type = SchedulerType::kOneCycle, .name = "OneCycle", .origin = SchedulerOrigin::kDeepSpeed},
    {.type = SchedulerType::kLRRangeTest,
     .name = "LRRangeTest",
     .origin = SchedulerOrigin::kDeepSpeed},
    {.type = SchedulerType::kTorch,
     .name = "torch.optim.lr_scheduler",
     .origin = SchedulerOrigin::kPyTorch},
};

constexpr const LearningRateScheduleTraits& traits_of(SchedulerType type) {
  return kLearningRateScheduleTraits[static_cast<size_t>(type)];
}

/// Returns whether a type is one of transformers'.
constexpr bool is_of_transformers(SchedulerType type) {
  return traits_of(type).origin == SchedulerOrigin::kTransformers;
}

template <>
struct EnumNames<SchedulerType> {
  static constexpr auto kNames =
      names_of_rows<&LearningRateScheduleTraits::type>(kLearningRateScheduleTraits);
};

}  // namespace ftrun
