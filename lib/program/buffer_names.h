#pragma once

#include <cstdint>
#include <string>

#include "program/program.h"

namespace ftrun {

/// Names of the persistent buffers in messages. Buffers outside the device tier carry the tier's
/// name after a dot. Names of gradient buffers, which are not persistent, end in the first unit
/// that the buffer holds.
namespace buffer_names {
inline constexpr const char* kParameters = "parameters";
inline constexpr const char* kQuantizedParameters = "parameters.quantized";
inline constexpr const char* kFp32Parameters = "parameters.fp32";
inline constexpr const char* kSecondary = "parameters.secondary";
inline constexpr const char* kQuantizedSecondary = "parameters.secondary.quantized";
inline constexpr const char* kGradients = "gradients";
inline constexpr const char* kMaster = "master";
inline constexpr const char* kLoss = "loss";
inline constexpr const char* kGradientNorm = "norm";
inline constexpr const char* kLogits = "logits";
inline constexpr const char* kSnapshot = "snapshot";
inline constexpr const char* kStraddlingScales = "optimizer.straddling_tensor";
inline constexpr const char* kNewScales = "new_scales";
}  // namespace buffer_names

/// Names a flat state buffer: "optimizer.0", "optimizer.1".
inline std::string optimizer_buffer_name(int32_t state) {
  return "optimizer." + std::to_string(state);
}
constexpr PersistentKind optimizer_state_kind(int32_t state) {
  return static_cast<PersistentKind>(static_cast<int32_t>(PersistentKind::kOptimizerStates) +
                                     state);
}

}  // namespace ftrun
