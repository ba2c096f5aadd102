#include "search/layout.h"

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Keys that concern only pipelines.
constexpr const char* kPipelineKeys[] = {"parallel.schedule", "parallel.virtual_stages"};

/// Returns whether a key is left out of a config if it has its default.
bool is_silent(const std::string& path) {
  return path == "parallel.data_replicate" || path == "recompute.policy" ||
         path == "recompute.every" || path.find(".offload_") != std::string::npos;
}

const char* place_name(OffloadDevice device) {
  return device == OffloadDevice::kCpu ? "main memory" : "files";
}

}  // namespace

int complexity_score(const Layout& layout) {
  int score = static_cast<int>(layout.zero);
  const bool offloads = layout.optimizer_offload != OffloadDevice::kNone;
  const bool offloads_parameters = layout.parameter_offload != OffloadDevice::kNone;
  score += layout.tensor > 1 ? 4 : 0;
  score += layout.pipeline > 1 ? 4 + static_cast<int>(layout.chunks) : 0;
  score += layout.replicas > 1 ? 2 : 0;
  score += static_cast<int>(layout.recompute);
  score += offloads ? 4 : 0;
  score += offloads_parameters ? 2 : 0;
  return score;
}

std::vector<std::pair<std::string, FieldValue>> layout_keys(const Layout& layout) {
  const auto word = [](std::string_view name) { return FieldValue(std::string(name)); };
  std::vector<std::pair<std::string, FieldValue>> keys{
      {"parallel.data", layout.data},
      {"parallel.data_replicate", layout.replicas},
      {"parallel.tensor", layout.tensor},
      {"parallel.pipeline", layout.pipeline},
      {"zero_optimization.stage", layout.zero},
      {"zero_optimization.offload_optimizer.device", word(name_of(layout.optimizer_offload))},
      {"zero_optimization.offload_param.device", word(name_of(layout.parameter_offload))},
      {"train_batch_size", layout.batch()},
      {"train_micro_batch_size_per_gpu", layout.micro_batch},
      {"gradient_accumulation_steps", layout.accumulation},
      {"recompute.policy", word(name_of(layout.recompute))},
      {"recompute.every", int64_t{1}},
  };
  if (layout.pipeline == 1) return keys;
  keys.emplace_back(kPipelineKeys[0], word(name_of(layout.schedule)));
  keys.emplace_back(kPipelineKeys[1], layout.chunks);
  return keys;
}

void write_layout(const Layout& layout, WrittenConfig& config) {
  // A layout does not specify how the layers are divided among the stages of a pipeline.
  config.erase("parallel.pipeline_layers");
  for (const char* key : kPipelineKeys) config.erase(key);
  for (auto& [path, value] : layout_keys(layout)) {
    const Field& field = Schema::get().at(path);
    if (is_silent(path) && value == field.default_value)
      config.erase(path);
    else
      config.write(field, std::move(value), config.origins.position(path));
  }
}

std::vector<std::string> layout_overrides(int64_t batch) {
  Layout plain;
  plain.micro_batch = batch;
  std::vector<std::string> overrides;
  for (const auto& [path, value] : layout_keys(plain))
    overrides.push_back(cat(path, "=",
                            std::holds_alternative<int64_t>(value)
                                ? std::to_string(std::get<int64_t>(value))
                                : std::get<std::string>(value)));
  return overrides;
}

std::string layout_text(const Layout& layout) {
  std::vector<std::string> axes;
  const auto axis = [&](const char* name, int64_t ranks) {
    if (ranks > 1) axes.push_back(cat(name, " ", ranks));
  };
  axis("data", layout.data);
  axis("tensor", layout.tensor);
  axis("pipeline", layout.pipeline);
  std::string text = axes.empty() ? "1 rank" : join(axes, " × ");
  if (layout.pipeline > 1) text += cat(" (", name_of(layout.schedule), ")");
  text += cat(", ZeRO ", layout.zero);
  if (layout.replicas > 1) text += cat(" in ", layout.replicas, " replicas");
  text += cat(", micro-batch ", layout.micro_batch, " × ", layout.accumulation);
  if (layout.recompute != RecomputeLevel::kNone)
    text += cat(", recompute ", name_of(layout.recompute));
  if (layout.optimizer_offload != OffloadDevice::kNone)
    text += cat(", optimizer state in ", place_name(layout.optimizer_offload));
  if (layout.parameter_offload != OffloadDevice::kNone)
    text += cat(", parameters in ", place_name(layout.parameter_offload));
  return text;
}

}  // namespace ftrun
