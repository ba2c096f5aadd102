#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace ftrun {

struct ResolveState;

/// RequiredField is a field that each row of a table must set; a row that omits it does not
/// compile.
template <class T>
struct RequiredField {
  template <std::convertible_to<T> Given>
  constexpr RequiredField(Given given) : value(given) {}  // NOLINT: rows give plain values
  T value;
};

/// AxisRanks says what the ranks along an axis do: train on different data, or compute one model
/// together. Some axes only divide the ranks of others.
enum class AxisRanks : uint8_t {
  kData,          // ranks that train on different sequences
  kModel,         // ranks that compute one model together; they multiply the data-parallel ranks
  kWithinOthers,  // the axis divides the ranks of other axes and adds no ranks
};

/// AxisSupport describes how far an axis can be used.
enum class AxisSupport : uint8_t {
  kRuns,
  kEmulated,  // it has run only on CPUs and emulated GPUs (docs/benchmarks.md)
  kRefused,   // its keys are read and checked, and it cannot run yet
};

/// AxisKeys describes the config keys of an axis.
struct AxisKeys {
  /// The key of the degree: "parallel.tensor". Messages use its last part ("tensor 2").
  RequiredField<const char*> key;
  RequiredField<int64_t ParallelConfig::*> degree;
  /// DeepSpeed's name of the degree, and its value. The values 0 and 1 mean that the axis is
  /// unused; null: DeepSpeed has no such key.
  RequiredField<const char*> deepspeed_key;
  RequiredField<int64_t (*)(const Config&)> deepspeed_degree;
  RequiredField<AxisRanks> ranks;
  RequiredField<AxisSupport> support;
  /// The feature's name in messages: "tensor parallelism".
  RequiredField<const char*> feature;
  /// Reports what contradicts the degree, after the ranks are divided; null if nothing can.
  RequiredField<void (*)(ResolveState&)> check;
  /// Suggests other degrees if the ranks cannot be divided: ", or write parallel.tensor: 1 or 3";
  /// null if there are no suggestions.
  RequiredField<std::string (*)(const ResolveState&)> suggest_degrees;

  std::string_view name() const {
    const std::string_view whole = key.value;
    return whole.substr(whole.rfind('.') + 1);
  }
  /// Lists the keys of the degree: its own and DeepSpeed's, if there is one.
  std::vector<std::string_view> degree_keys() const {
    if (deepspeed_key.value == nullptr) return {key.value};
    return {key.value, deepspeed_key.value};
  }
  int64_t& degree_in(ParallelConfig& mesh) const { return mesh.*degree.value; }
  int64_t degree_in(const ParallelConfig& mesh) const { return mesh.*degree.value; }
};

namespace keys {
#define FTRUN_AXIS(name) extern const AxisKeys name;
#include "axes/axes.inc"
}  // namespace keys

/// The axes of axes.inc, in its order.
inline constexpr std::array kAxes = {
#define FTRUN_AXIS(name) &keys::name,
#include "axes/axes.inc"
};

/// Return how many ranks a resolved config has along an axis of the mesh.
namespace mesh_sizes {
#define FTRUN_MESH_AXIS(kind, name, divided) int64_t name(const Config& config);
#include "axes/axes.inc"
}  // namespace mesh_sizes

}  // namespace ftrun
