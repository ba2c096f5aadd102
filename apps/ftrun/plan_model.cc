#include "plan_model.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/text.h"
#include "checkpoint/model_folder.h"
#include "config/ranks.h"
#include "config/write.h"
#include "error_with_problems.h"
#include "model/presets.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// The default number of tokens of a sequence, unless the model has fewer positions.
constexpr int64_t kDefaultSequenceLength = 4096;

NamedModel model_of_preset(const ModelPreset& preset, const std::string& name) {
  return {name, std::string(preset.source), preset_config(preset, name)};
}

NamedModel model_of_file(const std::string& path, const std::string& name) {
  return {name, path, parse_model_config(read_file(path, kMaxModelConfig), path)};
}

/// Returns the text of a config for a model that is planned without a config.
std::string config_for(const NamedModel& model) {
  const int64_t sequence = model.config.max_positions > 0
                               ? std::min(model.config.max_positions, kDefaultSequenceLength)
                               : kDefaultSequenceLength;
  return cat(
      "bf16: {enabled: true}\n"
      "train_micro_batch_size_per_gpu: 1\n"
      "data: {sequence_length: ",
      sequence, "}\n");
}

void refuse_two_models(const WrittenConfig& config, const NamedModel& model) {
  Problem problem;
  problem.at = config.origins.position("model.path");
  problem.message =
      cat("model.path: the config names the model ", config.get<std::string>("model.path"),
          ", and the plan is for ", model.name);
  problem.remedy = "remove --model and --params, or model.path";
  throw ErrorWithProblems(Error(ExitCode::kUsage, to_text(problem)), {problem});
}

}  // namespace

NamedModel read_named_model(const ModelOptions& options) {
  if (!options.size.empty()) {
    const int64_t parameters = parse_parameter_count(options.size);
    return model_of_preset(preset_of_size(parameters), options.size);
  }
  const std::string& given_name = options.model;
  std::error_code none;
  if (fs::is_regular_file(given_name, none)) {
    const std::string folder = fs::path(given_name).parent_path().string();
    return model_of_file(given_name, folder.empty() ? "." : folder);
  }
  if (fs::is_directory(given_name, none))
    return model_of_file(given_name + "/config.json", given_name);
  if (parse_hub_name(given_name))
    return model_of_file(find_model_folder(given_name).folder + "/config.json", given_name);
  return model_of_preset(find_preset(given_name), given_name);
}

void set_planned_model(ConfigSource& source, const NamedModel& model, const Machine* machine,
                       int64_t nodes) {
  if (source.files.empty()) source.texts = {{"ftrun plan --model", config_for(model)}};
  const WrittenConfig config = load_config(source).written;
  if (!config.get<std::string>("model.path").empty()) refuse_two_models(config, model);
  source.model = model.config;
  source.overrides.push_back(cat("model.path=", yaml_text(model.name)));
  if (!config.origins.is_written("device"))
    source.overrides.push_back(machine == nullptr || machine->has_gpus ? "device=cuda"
                                                                       : "device=cpu");
  const bool says_ranks = source.nproc || config.origins.is_written("parallel.data");
  if (machine == nullptr || says_ranks) return;
  const int64_t of_node = machine->has_gpus ? machine->devices : machine->rates.back().ranks;
  if (of_node > kMaxRanks / nodes)
    throw Error(ExitCode::kUsage,
                cat("--nodes ", nodes, ": ", of_node, " ranks per node are more than ", kMaxRanks,
                    " in all, the most that a run can have"),
                "plan for fewer nodes");
  source.nproc = nodes * of_node;
}

std::string named_model_text(const NamedModel& model) {
  const ModelConfig& shape = model.config;
  return cat("model: ", model.name, ": ", shape.family, ", ", shape.layers, " layers of width ",
             shape.hidden, ", ", shape.query_heads, " heads, MLP ", shape.feed_forward,
             ", vocabulary ", shape.vocab_rows, " (", model.source, ")\n");
}

}  // namespace ftrun
