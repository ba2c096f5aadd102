#include "model/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "base/error.h"
#include "base/text.h"
#include "model/families.h"

namespace ftrun {
namespace {

float scale_llama3_frequency(const Llama3Scaling& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor);
  const auto original = static_cast<float>(rope.original_positions);
  const auto low = static_cast<float>(rope.low_frequency_factor);
  const auto span = static_cast<float>(rope.high_frequency_factor - rope.low_frequency_factor);
  const double low_wavelength =
      static_cast<double>(rope.original_positions) / rope.low_frequency_factor;
  const double high_wavelength =
      static_cast<double>(rope.original_positions) / rope.high_frequency_factor;
  const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / frequency;
  if (wavelength > static_cast<float>(low_wavelength)) return frequency / factor;
  if (wavelength < static_cast<float>(high_wavelength)) return frequency;
  const float smooth = (original / wavelength - low) / span;
  return (1.0F - smooth) * frequency / factor + smooth * frequency;
}

/// YarnRamp rises from 0 at the pair `low` to 1 at the pair `high`.
struct YarnRamp {
  double low, high;

  float at(int64_t pair) const {
    const auto from = static_cast<float>(low), over = static_cast<float>(high - low);
    return std::clamp((static_cast<float>(pair) - from) / over, 0.0F, 1.0F);
  }
};

/// Returns yarn's ramp: pairs up to `low` keep their frequencies, pairs from `high` on are
/// stretched by the factor, and pairs between them are blended.
YarnRamp yarn_ramp(const YarnScaling& yarn, double theta, int64_t rotary_size) {
  // Returns the pair that makes `turns` turns within the original positions, as a fractional
  // number.
  const auto pair_with_turns = [&](double turns) {
    constexpr double kFar = 1e6;  // beyond all pairs; keeps the result finite for any config
    const double wavelength = static_cast<double>(yarn.original_positions) / turns;
    const double pair = static_cast<double>(rotary_size) *
                        std::log(wavelength / (2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
    return std::clamp(pair, -kFar, kFar);
  };
  double low = pair_with_turns(yarn.beta_fast);
  double high = pair_with_turns(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotary_size - 1));
  return {low, low == high ? high + 0.001 : high};
}

/// ScaledFrequency returns the scaled frequency of a pair, whose wavelength over 2 pi is `power`
/// tokens before the scaling.
using ScaledFrequency = std::function<float(int64_t pair, float power)>;

ScaledFrequency make_scaled_frequency(const RopeConfig& rope, int64_t rotary_size,
                                      int64_t longest_sequence) {
  if (const auto* linear = rope.as<LinearScaling>())
    return [linear](int64_t, float power) {
      return 1.0F / power / static_cast<float>(linear->factor);
    };
  if (const auto* llama3 = rope.as<Llama3Scaling>())
    return [llama3](int64_t, float power) { return scale_llama3_frequency(*llama3, 1.0F / power); };
  if (const auto* yarn = rope.as<YarnScaling>())
    return [yarn, ramp = yarn_ramp(*yarn, rope.theta, rotary_size)](int64_t pair, float power) {
      const float kept_share = 1.0F - ramp.at(pair);
      const float stretched = 1.0F / (static_cast<float>(yarn->factor) * power);
      return stretched * (1.0F - kept_share) + 1.0F / power * kept_share;
    };
  if (const auto* longrope = rope.as<LongRopeScaling>()) {
    const std::vector<double>& factors = uses_long_factors(rope, longest_sequence)
                                             ? longrope->long_factors
                                             : longrope->short_factors;
    return [&factors](int64_t pair, float power) {
      return 1.0F / (static_cast<float>(factors[static_cast<size_t>(pair)]) * power);
    };
  }
  return [](int64_t, float power) { return 1.0F / power; };
}

/// Formats a factor, rounded up to two decimals.
std::string factor_text(double factor) {
  return number_text(std::ceil(factor * 100.0 - 1e-6) / 100.0);
}

}  // namespace

std::vector<double> inverse_frequencies(const RopeConfig& rope, int64_t rotary_size,
                                        int64_t longest_sequence) {
  std::vector<double> out;
  const auto base = static_cast<double>(static_cast<float>(rope.theta));
  const ScaledFrequency scaled = make_scaled_frequency(rope, rotary_size, longest_sequence);
  for (int64_t i = 0; i < rotary_size; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_size);
    const auto power = static_cast<float>(std::pow(base, static_cast<double>(exponent)));
    out.push_back(static_cast<double>(scaled(i / 2, power)));
  }
  return out;
}

bool uses_long_factors(const RopeConfig& rope, int64_t longest_sequence) {
  const auto* longrope = rope.as<LongRopeScaling>();
  return longrope != nullptr && longest_sequence > longrope->original_positions;
}

double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [&](double share) {
    return factor <= 1.0 ? 1.0 : 0.1 * share * std::log(factor) + 1.0;
  };
  return mscale == 0 || mscale_all_dim == 0 ? scale(1.0) : scale(mscale) / scale(mscale_all_dim);
}

double longrope_attention_factor(double factor, int64_t original_positions) {
  require(original_positions > 1, "longrope has more than one original position");
  const double original = std::log(static_cast<double>(original_positions));
  return factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / original);
}

int64_t max_supported_positions(const ModelConfig& config) {
  const auto* yarn = config.rope.as<YarnScaling>();
  // Published configs with yarn (Qwen2.5) keep the max_position_embeddings from before the scaling.
  if (yarn == nullptr || config.rotary_size() == 0) return config.max_positions;
  const double max_positions = yarn->factor * static_cast<double>(yarn->original_positions);
  constexpr double kMaxPositions = 0x1p40;
  return std::max(config.max_positions,
                  static_cast<int64_t>(std::min(max_positions, kMaxPositions)));
}

std::string suggest_rope_scaling(const ModelConfig& config, int64_t tokens) {
  if (config.rotary_size() == 0) return "";
  const RopeConfig& rope = config.rope;
  const int64_t max_positions = max_supported_positions(config);
  if (rope.as<LongRopeScaling>())
    return cat("longrope's long_factor is for sequences of at most ", max_positions,
               " tokens; longer ones need factors that were found for them");
  if (find_family(config.family)->yarn_is_longrope)
    return cat(
        "longrope reaches them: rope_scaling with a short_factor and a long_factor that were found "
        "for this model");
  const double times = static_cast<double>(tokens) / static_cast<double>(max_positions);
  if (rope.is_scaled())
    return cat("factor ", factor_text(rope.factor() * times), " instead of ",
               number_text(rope.factor()), " in the rope scaling of config.json reaches them");
  return cat("yarn reaches them: \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": ",
             factor_text(times), ", \"original_max_position_embeddings\": ", max_positions,
             "} in config.json");
}

}  // namespace ftrun
