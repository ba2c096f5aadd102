#include "model/rope.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "model/families.h"

namespace ftrun {
namespace {

bool is_filled_object(const nlohmann::json* value) {
  return value && value->is_object() && !value->empty();
}

// transformers 5 lets a filled rope_scaling win over rope_parameters.
const char* rope_key(ConfigReader& reader) {
  const char* chosen = nullptr;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* value = reader.find(key);
    if (value && !value->is_object())
      reader.problem(key, "found " + found_text(*value) + "; expected an object");
    if (is_filled_object(value)) chosen = key;
  }
  return chosen;
}

bool is_nested(const nlohmann::json& rope) {
  for (const nlohmann::json& value : rope)
    if (value.is_object()) return true;
  return false;
}

void read_llama3(ConfigReader& outer, ConfigReader& reader, int64_t max_positions,
                 RopeConfig& rope) {
  constexpr WholeRange kPositions{1, int64_t{1} << 40};
  rope.low_frequency_factor = reader.number("low_freq_factor", 1.0, true);
  rope.high_frequency_factor = reader.number("high_freq_factor", 4.0, true);
  if (rope.high_frequency_factor <= rope.low_frequency_factor && reader.find("high_freq_factor"))
    reader.problem("high_freq_factor", "must be above low_freq_factor");
  const int64_t inner =
      reader.whole_or("original_max_position_embeddings", max_positions, kPositions);
  rope.original_positions = outer.whole_or("original_max_position_embeddings", inner, kPositions);
  if (rope.original_positions == 0)
    reader.problem("original_max_position_embeddings", "missing; expected a whole number");
}

double read_partial(ConfigReader& reader, double outer, const char* key = "partial_rotary_factor") {
  const double share = reader.number_or(key, outer, true);
  if (share > 1.0) reader.problem(key, cat("found ", number_text(share), "; expected at most 1"));
  return share;
}

RopeConfig read_scaling(ConfigReader& outer, ConfigReader reader, RopeConfig rope,
                        int64_t max_positions) {
  rope.theta = reader.number_or("rope_theta", rope.theta, true);
  const std::string type = reader.text_or("rope_type", reader.text_or("type", "default"));
  if (type == "linear" || type == "llama3") rope.factor = reader.number("factor", 1.0, true);
  if (type == "linear") {
    rope.type = RopeType::kLinear;
  } else if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    read_llama3(outer, reader, max_positions, rope);
  } else if (type != "default") {
    reader.unsupported("rope_type",
                       found_text(type) + " is not supported yet (default, linear and llama3 are)");
  }
  rope.partial = read_partial(reader, rope.partial);
  return rope;
}

float llama3_scaled(const RopeConfig& rope, float frequency) {
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

float scaled(const RopeConfig& rope, float frequency) {
  switch (rope.type) {
    case RopeType::kDefault:
      return frequency;
    case RopeType::kLinear:
      return frequency / static_cast<float>(rope.factor);
    case RopeType::kLlama3:
      return llama3_scaled(rope, frequency);
  }
  bug("unknown rope type");
}

}  // namespace

RopeConfig read_rope(ConfigReader& reader, int64_t max_positions, const Family& family) {
  RopeConfig rope;
  rope.theta = reader.number_or(family.keys.rope_theta, family.defaults.rope_theta, true);
  rope.partial = read_partial(reader, family.defaults.partial_rotary, family.keys.partial_rotary);
  const char* key = rope_key(reader);
  if (!key) return rope;
  if (is_nested(*reader.find(key))) {
    reader.unsupported(key, "a rotation for each layer type is not supported yet");
    return rope;
  }
  return read_scaling(reader, reader.inner(key), rope, max_positions);
}

LayerRopes read_layer_ropes(ConfigReader& reader, int64_t max_positions) {
  LayerRopes ropes;
  ropes.full.theta = reader.number_or("rope_theta", 1e6, true);
  ropes.window.theta = reader.number_or("rope_local_base_freq", 1e4, true);
  const char* const key = rope_key(reader);
  if (!key) return ropes;
  ConfigReader inner = reader.inner(key);
  if (!is_nested(*reader.find(key))) {
    ropes.full = read_scaling(reader, inner, ropes.full, max_positions);
    return ropes;
  }
  const auto read = [&](const char* type, RopeConfig& rope) {
    const nlohmann::json* value = inner.find(type);
    if (value && value->is_object())
      rope = read_scaling(reader, inner.inner(type), rope, max_positions);
    else if (value)
      inner.problem(type, cat("found ", found_text(*value), "; expected an object"));
  };
  read("full_attention", ropes.full);
  read("sliding_attention", ropes.window);
  return ropes;
}

std::vector<double> inverse_frequencies(const RopeConfig& rope, int64_t rotary_size) {
  std::vector<double> out;
  const auto base = static_cast<double>(static_cast<float>(rope.theta));
  for (int64_t i = 0; i < rotary_size; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_size);
    const auto power = static_cast<float>(std::pow(base, static_cast<double>(exponent)));
    out.push_back(static_cast<double>(scaled(rope, 1.0F / power)));
  }
  return out;
}

}  // namespace ftrun
