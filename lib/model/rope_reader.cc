#include "model/rope_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/families.h"
#include "model/rope_angles.h"

namespace ftrun {
namespace {

constexpr const char* kOriginal = "original_max_position_embeddings";

bool is_filled_object(const nlohmann::json* value) {
  return value && value->is_object() && !value->empty();
}

/// Returns the key to read. In transformers 5, a rope_scaling with content has precedence over
/// rope_parameters.
const char* find_rope_key(ConfigReader& reader) {
  const char* rope_key = nullptr;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* value = reader.find(key);
    if (value && !value->is_object())
      reader.add_problem(key, "found " + json_value_text(*value) + "; expected an object");
    if (is_filled_object(value)) rope_key = key;
  }
  return rope_key;
}

bool is_nested(const nlohmann::json& rope) {
  for (const nlohmann::json& value : rope)
    if (value.is_object()) return true;
  return false;
}

double read_partial(ConfigReader& reader, double outer, const char* key = "partial_rotary_factor") {
  const double share = reader.read_number_or(key, outer, true);
  if (share > 1.0)
    reader.add_problem(key, cat("found ", number_text(share), "; expected at most 1"));
  return share;
}

/// Returns the keys that are read from a scaling's object: `own`, which only this scaling has, and
/// the keys of all scalings.
std::vector<std::string> with_common_keys(std::initializer_list<const char*> own) {
  std::vector<std::string> keys{"attention_factor", "factor",    kOriginal, "partial_rotary_factor",
                                "rope_theta",       "rope_type", "type"};
  keys.insert(keys.end(), own.begin(), own.end());
  std::sort(keys.begin(), keys.end());
  return keys;
}

/// ScalingReader reads the object of one rotation.
class ScalingReader {
 public:
  /// Prepares to read `settings`. `config` reads the whole config.json, whose
  /// original_max_position_embeddings has precedence over the object's; null for a class with a
  /// rotation for each layer type, which reads only the object.
  ScalingReader(ConfigReader settings, ConfigReader* config, const ModelConfig& known,
                const Family& family)
      : settings_(std::move(settings)), config_(config), known_(known), family_(family) {}

  /// Reads the object; `rope` holds the values that are outside it.
  RopeConfig read(RopeConfig rope) {
    rope.theta = settings_.read_number_or("rope_theta", rope.theta, true);
    rope.partial = read_partial(settings_, rope.partial);
    const char* const key = settings_.find("rope_type") ? "rope_type" : "type";
    const std::string type = settings_.read_text_or(key, "default");
    if (type == "linear") {
      rope.scaling = LinearScaling{settings_.read_number("factor", 1.0, true)};
    } else if (type == "llama3") {
      rope.scaling = read_llama3();
    } else if (type == "longrope" || type == "su" || (type == "yarn" && family_.yarn_is_longrope)) {
      if (type == "yarn" && !settings_.find("short_factor"))
        settings_.add_problem(
            key,
            "\"yarn\" is read as \"longrope\" in this family, and needs short_factor "
            "and long_factor");
      else
        rope.scaling = read_longrope(rope.partial);
    } else if (type == "yarn") {
      rope.scaling = read_yarn(rope.theta, key);
    } else if (type == "dynamic") {
      settings_.add_unsupported(key, dynamic_refusal_text());
    } else if (type != "default") {
      settings_.add_unsupported(
          key, json_value_text(type) +
                   " is not supported yet (default, linear, llama3, yarn and longrope are)");
    }
    return rope;
  }

 private:
  Llama3Scaling read_llama3() {
    Llama3Scaling llama3;
    llama3.factor = settings_.read_number("factor", 1.0, true);
    llama3.low_frequency_factor = settings_.read_number("low_freq_factor", 1.0, true);
    llama3.high_frequency_factor = settings_.read_number("high_freq_factor", 4.0, true);
    if (llama3.high_frequency_factor <= llama3.low_frequency_factor &&
        settings_.find("high_freq_factor"))
      settings_.add_problem("high_freq_factor", "must be above low_freq_factor");
    llama3.original_positions = read_original_positions();
    return llama3;
  }

  YarnScaling read_yarn(double theta, const char* type_key) {
    YarnScaling yarn;
    std::vector<std::string> read_keys = with_common_keys(
        {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"});
    if (family_.scales_far_queries) {
      read_keys.insert(read_keys.end(), {"llama_4_scaling_beta", "max_position_embeddings"});
      std::sort(read_keys.begin(), read_keys.end());
    }
    refuse_other_keys("yarn", read_keys);
    if (theta <= 1.0)
      settings_.add_problem(
          type_key, cat("\"yarn\" expects a rope_theta above 1, found ", number_text(theta)));
    yarn.original_positions = read_original_positions();
    if (settings_.has("factor"))
      yarn.factor = read_factor_or_ratio(yarn.original_positions);
    else
      settings_.add_problem("factor", "missing; expected a number of at least 1");
    // For these keys, zero means the default, as null does.
    const double fast = read_at_least("beta_fast", 0, 0), slow = read_at_least("beta_slow", 0, 0);
    if (fast != 0) yarn.beta_fast = fast;
    if (slow != 0) yarn.beta_slow = slow;
    if (yarn.beta_fast < yarn.beta_slow)
      settings_.add_problem(
          "beta_fast", cat("found ", number_text(yarn.beta_fast), "; expected at least beta_slow, ",
                           number_text(yarn.beta_slow)));
    yarn.truncate = settings_.read_bool_or("truncate", true);
    if (!yarn.truncate && !config_)
      settings_.add_unsupported("truncate",
                                "transformers reads it only for models with one rotation");
    const double mscale = read_at_least("mscale", 0, 0),
                 all = read_at_least("mscale_all_dim", 0, 0);
    yarn.attention_factor = settings_.read_number_or(
        "attention_factor", yarn_attention_factor(yarn.factor, mscale, all), true);
    return yarn;
  }

  LongRopeScaling read_longrope(double partial) {
    LongRopeScaling longrope;
    refuse_other_keys("longrope", with_common_keys({"short_factor", "long_factor"}));
    longrope.original_positions = read_original_positions();
    if (longrope.original_positions == 1)
      settings_.add_problem(kOriginal, "found 1; longrope expects at least 2");
    longrope.factor = read_factor_or_ratio(longrope.original_positions);
    longrope.attention_factor = settings_.read_number_or(
        "attention_factor",
        longrope_attention_factor(longrope.factor,
                                  std::max<int64_t>(longrope.original_positions, 2)),
        true);
    const int64_t size =
        known_.head_size > 0 ? known_.head_size : known_.hidden / known_.query_heads;
    const auto pairs = static_cast<int64_t>(static_cast<double>(size) * partial) / 2;
    longrope.short_factors = read_factors("short_factor", pairs);
    longrope.long_factors = read_factors("long_factor", pairs);
    return longrope;
  }

  /// Returns how many tokens the longest sequences had before the scaling.
  int64_t read_original_positions() {
    constexpr WholeNumberRange kPositions{1, int64_t{1} << 40};
    int64_t positions = settings_.read_integer_or(kOriginal, known_.max_positions, kPositions);
    if (config_) {
      // The class's own value, if it has one, has precedence over the object's.
      const int64_t class_default = family_.defaults.original_positions;
      positions = config_->read_integer_or(kOriginal, class_default > 0 ? class_default : positions,
                                           kPositions);
    }
    if (positions == 0) settings_.add_problem(kOriginal, "missing; expected a whole number");
    return positions;
  }

  /// Reads the factor; if it is missing, returns max_position_embeddings / original positions.
  double read_factor_or_ratio(int64_t original) {
    if (settings_.find("factor")) return read_at_least("factor", 1.0, 1.0);
    if (known_.max_positions == 0)
      settings_.add_problem("factor",
                            "missing, and it cannot be computed without max_position_embeddings");
    if (original == 0) return 1.0;
    return static_cast<double>(known_.max_positions) / static_cast<double>(original);
  }

  double read_at_least(const char* key, double fallback, double low) {
    const double value = settings_.read_number_or(key, fallback, false);
    if (value >= low) return value;
    settings_.add_problem(key, cat("found ", number_text(value), "; expected a number of at least ",
                                   number_text(low)));
    return fallback;
  }

  /// Reads a list with the number by which each pair's frequency is divided.
  std::vector<double> read_factors(const char* key, int64_t pairs) {
    const nlohmann::json* const list = settings_.find(key);
    std::vector<double> out;
    if (!list || !list->is_array()) {
      settings_.add_problem(key, cat(list                 ? "found " + json_value_text(*list)
                                     : settings_.has(key) ? "found null"
                                                          : "missing",
                                     "; expected a list of ", pairs, " numbers"));
      return out;
    }
    for (const nlohmann::json& item : *list) {
      const double number = item.is_number() ? item.get<double>() : 0;
      if (!std::isfinite(number) || number <= 0) {
        settings_.add_problem(key, cat("entry ", out.size(), " is ", json_value_text(item),
                                       "; expected a number above 0"));
        return out;
      }
      out.push_back(number);
    }
    if (static_cast<int64_t>(out.size()) != pairs)
      settings_.add_problem(key, cat("has ", out.size(), " numbers; expected ", pairs,
                                     ", one for each pair of elements that rotates"));
    return out;
  }

  /// Refuses keys of the object that are not read, because they could change the mathematics.
  void refuse_other_keys(std::string_view type, const std::vector<std::string>& read_keys) {
    for (const std::string& key : settings_.keys())
      if (!std::binary_search(read_keys.begin(), read_keys.end(), key))
        settings_.add_unsupported(
            json_value_text(key),
            cat("is not a key of ", type, " that ftrun reads (", join(read_keys, ", "), ")"));
  }

  std::string dynamic_refusal_text() const {
    return cat(
        "\"dynamic\" changes all angles with the longest sequence of a batch, so what is learned "
        "from a sequence would depend on the others of its batch; remove it for sequences of at "
        "most ",
        known_.max_positions > 0 ? std::to_string(known_.max_positions) : "max_position_embeddings",
        " tokens, which rotate as without it, and for longer ones write ",
        family_.yarn_is_longrope ? "\"longrope\" with its factors"
                                 : "\"yarn\" or \"linear\" with the same factor");
  }

  ConfigReader settings_;
  ConfigReader* config_;
  const ModelConfig& known_;
  const Family& family_;
};

}  // namespace

RopeConfig read_rope(ConfigReader& reader, const ModelConfig& known, const Family& family) {
  RopeConfig rope;
  rope.theta = reader.read_number_or(family.keys.rope_theta, family.defaults.rope_theta, true);
  rope.partial = read_partial(reader, family.defaults.partial_rotary, family.keys.partial_rotary);
  const char* key = find_rope_key(reader);
  if (!key) return rope;
  if (is_nested(*reader.find(key))) {
    reader.add_unsupported(key, "a rotation for each layer type is not supported yet");
    return rope;
  }
  return ScalingReader(reader.reader_of(key), &reader, known, family).read(rope);
}

LayerRopes read_layer_ropes(ConfigReader& reader, const ModelConfig& known, const Family& family) {
  LayerRopes ropes;
  ropes.full.theta = reader.read_number_or("rope_theta", 1e6, true);
  ropes.window.theta = reader.read_number_or("rope_local_base_freq", 1e4, true);
  const char* const key = find_rope_key(reader);
  if (!key) return ropes;
  ConfigReader inner = reader.reader_of(key);
  const auto read_object = [&](ConfigReader object, const RopeConfig& rope) {
    return ScalingReader(std::move(object), nullptr, known, family).read(rope);
  };
  if (!is_nested(*reader.find(key))) {
    ropes.full = read_object(inner, ropes.full);
    return ropes;
  }
  const auto read = [&](const char* type, RopeConfig& rope) {
    const nlohmann::json* value = inner.find(type);
    if (value && value->is_object())
      rope = read_object(inner.reader_of(type), rope);
    else if (value)
      inner.add_problem(type, cat("found ", json_value_text(*value), "; expected an object"));
  };
  read("full_attention", ropes.full);
  read("sliding_attention", ropes.window);
  return ropes;
}

}  // namespace ftrun
