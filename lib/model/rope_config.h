#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

namespace ftrun {

// The structs below are the scalings of rotary angles, one for each rope_type of transformers.

struct NoScaling {
  static constexpr std::string_view kName = "default";
  bool operator==(const NoScaling&) const = default;
};

/// LinearScaling divides all frequencies by `factor`.
struct LinearScaling {
  static constexpr std::string_view kName = "linear";
  double factor = 1.0;
  bool operator==(const LinearScaling&) const = default;
};

/// Llama3Scaling stretches wave lengths above original_positions / low_frequency_factor tokens by
/// `factor`, keeps those below original_positions / high_frequency_factor, and blends others.
struct Llama3Scaling {
  static constexpr std::string_view kName = "llama3";
  double factor = 1.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  /// The longest context before the scaling.
  int64_t original_positions = 0;
  bool operator==(const Llama3Scaling&) const = default;
};

/// YarnScaling keeps the frequencies of pairs that rotate at least beta_fast times in the original
/// context, stretches those of pairs that rotate at most beta_slow times by `factor`, and blends
/// others.
struct YarnScaling {
  static constexpr std::string_view kName = "yarn";
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  /// Says whether the borders between kept, blended and stretched pairs are moved to whole pairs.
  bool truncate = true;
  /// The longest context before the scaling.
  int64_t original_positions = 0;
  /// The factor of cos and sin.
  double attention_factor = 1.0;
  bool operator==(const YarnScaling&) const = default;
};

/// LongRopeScaling divides each pair's frequency by its own factor: a short one in runs whose
/// sequences fit into the original context, a long one in other runs (model/rope_angles.h).
struct LongRopeScaling {
  static constexpr std::string_view kName = "longrope";
  /// The factor by which the longest context is longer than the original one.
  double factor = 1.0;
  std::vector<double> short_factors;
  std::vector<double> long_factors;
  /// The longest context before the scaling.
  int64_t original_positions = 0;
  /// The factor of cos and sin.
  double attention_factor = 1.0;
  bool operator==(const LongRopeScaling&) const = default;
};

/// RopeConfig says how heads rotate by position.
struct RopeConfig {
  double theta = 10000.0;
  /// The share of a head's elements that rotate.
  double partial = 1.0;
  std::variant<NoScaling, LinearScaling, Llama3Scaling, YarnScaling, LongRopeScaling> scaling;

  /// Returns the scaling if it is of this type, else null.
  template <typename Scaling>
  const Scaling* as() const {
    return std::get_if<Scaling>(&scaling);
  }
  bool is_scaled() const { return as<NoScaling>() == nullptr; }
  /// Returns the scaling's factor; 1 without a scaling.
  double factor() const {
    return std::visit(
        [](const auto& scaled) {
          if constexpr (requires { scaled.factor; })
            return scaled.factor;
          else
            return 1.0;
        },
        scaling);
  }
  /// Returns the longest context before the scaling; 0 for a scaling that does not depend on it.
  int64_t original_positions() const {
    return std::visit(
        [](const auto& scaled) {
          if constexpr (requires { scaled.original_positions; })
            return scaled.original_positions;
          else
            return int64_t{0};
        },
        scaling);
  }
  /// Returns the factor of cos and sin.
  double attention_factor() const {
    return std::visit(
        [](const auto& scaled) {
          if constexpr (requires { scaled.attention_factor; })
            return scaled.attention_factor;
          else
            return 1.0;
        },
        scaling);
  }
  bool operator==(const RopeConfig&) const = default;
};

}  // namespace ftrun
