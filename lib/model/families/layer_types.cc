#include "model/families/layer_types.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace ftrun {
namespace {

constexpr int64_t kDefaultWindow = 4096;

void read_layer_type(ConfigReader& reader, const std::string& type, size_t layer, int64_t window,
                     int64_t& out) {
  if (type == "full_attention" || type == "attention") return;
  if (type != "sliding_attention") {
    reader.add_unsupported("layer_types", cat("layer ", layer, " is ", json_value_text(type),
                                              ", which is not supported yet"));
  } else if (window == 0) {
    reader.add_problem(
        "layer_types",
        cat("layer ", layer, " is \"sliding_attention\", but no sliding window is in use"));
  } else {
    out = window;
  }
}

}  // namespace

void set_periodic_windows(ConfigReader& reader, ModelConfig& config, int64_t window,
                          int64_t period) {
  if (window == 0)
    reader.add_problem("sliding_window", "found null; expected the window of layers that have one");
  for (int64_t i = 0; i < config.layers; ++i)
    if ((i + 1) % period != 0) config.windows[static_cast<size_t>(i)] = window;
}

int64_t read_window(ConfigReader& reader) {
  if (reader.has("sliding_window") && !reader.find("sliding_window")) return 0;
  return reader.read_integer_or("sliding_window", kDefaultWindow, {1, int64_t{1} << 40});
}

bool read_layer_types(ConfigReader& reader, ModelConfig& config, int64_t window) {
  if (!reader.find("layer_types")) return false;
  const auto types = reader.read_texts("layer_types");
  if (types.size() != config.windows.size()) {
    if (reader.has_no_problems()) {
      reader.add_problem("layer_types", cat("has ", types.size(), " entries for num_hidden_layers ",
                                            config.windows.size()));
    }
    return true;
  }
  for (size_t i = 0; i < types.size(); ++i)
    read_layer_type(reader, types[i], i, window, config.windows[i]);
  return true;
}

}  // namespace ftrun
