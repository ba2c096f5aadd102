#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace ftrun {

/// LoraInit is adapter.init_lora_weights: the initial A and B, in PEFT's words. All but
/// kBothUniform leave the model as it is.
enum class LoraInit : uint8_t {
  kUniform,   // A as torch.nn.Linear (uniform up to 1 / sqrt(inputs)), B zero
  kGaussian,  // A normal of deviation 1 / rank, B zero
  // both from halves of one random orthogonal matrix of the rank, which is even: B A is zero
  kOrthogonal,
  kBothUniform,  // both as torch.nn.Linear: the model is not the base
};
template <>
struct EnumNames<LoraInit> {
  static constexpr auto kNames = enum_names<LoraInit>({"true", "gaussian", "orthogonal", "false"});
};

/// AdapterBias is adapter.bias: which biases train besides an adapter.
enum class AdapterBias : uint8_t {
  kNone,
  kAll,
  kLoraOnly,  // those of modules that have one
};
template <>
struct EnumNames<AdapterBias> {
  static constexpr auto kNames = enum_names<AdapterBias>({"none", "all", "lora_only"});
};

}  // namespace ftrun
