#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace ftrun {

/// LoraInit is adapter.init_lora_weights: how A and B are initialized, in PEFT's words. All but
/// kBothUniform leave the model unchanged at first.
enum class LoraInit : uint8_t {
  kUniform,   // A like torch.nn.Linear (uniform up to 1 / sqrt(inputs)), B zero
  kGaussian,  // A normal with standard deviation 1 / rank, B zero
  // A is made from the even rows, B from the odd rows of one random orthogonal matrix of size rank,
  // which must be even: B A is zero
  kOrthogonal,
  kBothUniform,  // A and B like torch.nn.Linear: the model differs from the base
};
template <>
struct EnumNames<LoraInit> {
  static constexpr auto kNames = enum_names<LoraInit>({"true", "gaussian", "orthogonal", "false"});
};

/// AdapterBias is adapter.bias: which biases train in addition to an adapter.
enum class AdapterBias : uint8_t {
  kNone,
  kAll,
  kLoraOnly,  // the biases of modules that have an adapter
};
template <>
struct EnumNames<AdapterBias> {
  static constexpr auto kNames = enum_names<AdapterBias>({"none", "all", "lora_only"});
};

}  // namespace ftrun
