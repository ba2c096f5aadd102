#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "model/families.h"
#include "model/model_config.h"
#include "source_paths.h"

namespace ftrun::testing {

inline std::string config_path(const std::string& name) {
  return testing::source_dir() + "/tests/model/configs/" + name + ".json";
}

inline ModelConfig config(const std::string& name) {
  return parse_model_config(read_file(config_path(name)), name);
}

/// Returns SmolLM2's config.json with these keys changed; a discarded value removes its key.
inline std::string changed_config_text(
    const std::vector<std::pair<std::string, nlohmann::json>>& changes,
    const std::string& base = "smollm2_135m.v4") {
  auto root = nlohmann::json::parse(read_file(config_path(base)));
  for (const auto& [key, value] : changes) {
    if (value.is_discarded()) {
      root.erase(key);
    } else {
      root[key] = value;
    }
  }
  return root.dump();
}

inline const nlohmann::json kRemoved = nlohmann::json::value_t::discarded;

/// Returns "exit code: message" of the error that parsing throws, or "accepted".
inline std::string refusal(const std::string& text) {
  try {
    parse_model_config(text, "config.json");
  } catch (const Error& error) {
    return cat(static_cast<int>(error.code()), ": ", error.what());
  }
  return "accepted";
}

}  // namespace ftrun::testing
