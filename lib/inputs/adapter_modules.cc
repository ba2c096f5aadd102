#include "inputs/adapter_modules.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/module_names.h"
#include "base/pattern.h"
#include "base/text.h"
#include "checkpoint/model_folder.h"
#include "config/model_name.h"
#include "config/peft_config.h"
#include "inputs/export_options.h"
#include "model/exclusions.h"
#include "model/families.h"
#include "model/module_paths.h"
#include "model/non_decoder_modules.h"
#include "program/lora_options.h"

namespace ftrun {
namespace {

/// Reads the names and shapes of the tensors in the model's folder. Returns nothing if the folder
/// cannot be read; other checks report that.
std::optional<StoredShapes> read_stored_shapes(const ModelSection& model) {
  if (model.path.empty()) return std::nullopt;
  StoredShapes stored;
  try {
    const ModelFolder folder(folder_of(model));
    for (const std::string& name : folder.names()) stored.emplace_back(name, folder.at(name).shape);
  } catch (const Error&) {
    return std::nullopt;
  }
  return stored;
}

/// Describes which modules an entry names: `"q_proj" names 27 modules of vision_tower
/// (model.vision_tower..., ...)`.
std::string target_text(const NonDecoderTarget& target) {
  return cat("\"", target.entry.substr(0, 80), "\" names ",
             count_text(target.module_count, "module"), " of ", target.part, " (",
             target.first_module, target.module_count > 1 ? ", ...)" : ")");
}

std::string non_decoder_remedy(const Config& config, const ModelConfig& model) {
  const AdapterConfig& adapter = config.adapter;
  const PeftBaseModel peft = peft_model("", model.family, model.multimodal, model.tied);
  std::string text =
      cat("to make PEFT choose what ftrun trains, write exclude_modules: '",
          exclusion_with_non_decoder(adapter, peft), "' (the exported adapter has it)");
  const std::vector<std::string>& entries = adapter.target_modules;
  const bool are_names = std::all_of(entries.begin(), entries.end(), [](const std::string& entry) {
    return entry != kAllLinear && entry.find('.') == std::string::npos;
  });
  if (!adapter.target_pattern.empty())
    text += ", or an expression that requires language_model in the path";
  else if (are_names && adapter.layers_to_transform.empty())
    text += cat(", or target_modules: '.*\\.language_model\\..*\\.(", join(entries, "|"), ")'");
  return text;
}

Problem non_decoder_notice(const Config& config, const ModelConfig& model,
                           const std::vector<NonDecoderTarget>& targets) {
  std::vector<std::string> texts;
  for (const NonDecoderTarget& target : targets) texts.push_back(target_text(target));
  const char* const key =
      config.adapter.target_pattern.empty() ? "adapter.target_modules" : "adapter.target_pattern";
  return Problem{config.origins.position(key),
                 cat("adapter.target_modules: ", join(texts, "; "),
                     ": PEFT would also train these, ftrun trains only the text decoder"),
                 non_decoder_remedy(config, model), Severity::kNotice};
}

Problem exclusion_problem(const Config& config, const ModelConfig& model,
                          const IneffectiveExclusion& exclusion) {
  const bool is_pattern = !config.adapter.exclude_pattern.empty();
  Problem problem;
  problem.at =
      config.origins.position(is_pattern ? "adapter.exclude_pattern" : "adapter.exclude_modules");
  const std::string prefix =
      cat("adapter.exclude_modules \"", exclusion.entry.substr(0, 80), "\": ");
  const TensorNames& names = tensor_names(model.family);
  const std::string example =
      path_in_memory(model, names.in_block(0, names.linear_layer(Projection::kQ)));
  if (exclusion.problem == ExclusionProblem::kUnknown) {
    const std::string list = is_pattern ? suggest_name_list(exclusion.entry) : "";
    problem.message = is_pattern
                          ? cat(prefix, "matches the path of no module")
                          : cat(prefix, "no module has this name", did_you_mean(exclusion.module),
                                "; adapters can be on ", join(adaptable_module_names(names), ", "));
    problem.remedy = cat(is_pattern ? "write an expression that matches a whole path, like "
                                    : "write the end of a module's path, like ",
                         example, list.empty() ? "" : cat("; or write names as a list: ", list),
                         "; or remove it");
    return problem;
  }
  problem.severity = Severity::kNotice;
  if (exclusion.problem == ExclusionProblem::kNoAdapter) {
    problem.message = cat(prefix, "changes nothing: it names modules (", exclusion.module,
                          ") that get no adapter anyway");
    return problem;
  }
  problem.message = cat(prefix, "changes nothing: ", exclusion.module,
                        " only contains other modules, and PEFT excludes a module by its own path");
  if (!is_pattern)
    problem.remedy = cat("to exclude the modules in it, write exclude_modules: '(.*\\.)?",
                         pattern_of_path(exclusion.entry), "\\..*'");
  return problem;
}

}  // namespace

std::vector<Problem> check_adapter_modules(const Config& config, const ModelConfig& model,
                                           bool with_notices) {
  if (config.adapter.type == AdapterType::kNone) return {};
  const LoraOptions options = lora_options(config.adapter);
  const bool is_multimodal = !model.multimodal.empty();
  const bool chooses = !options.target_modules.empty() || !options.target_pattern.empty();
  const bool excludes = !options.exclude_modules.empty() || !options.exclude_pattern.empty();
  std::optional<StoredShapes> stored;
  if (is_multimodal && ((with_notices && chooses) || excludes))
    stored = read_stored_shapes(config.model);
  std::vector<Problem> problems;
  if (excludes)
    for (const IneffectiveExclusion& exclusion :
         find_ineffective_exclusions(model, options, stored ? &*stored : nullptr))
      problems.push_back(exclusion_problem(config, model, exclusion));
  if (stored && with_notices)
    if (const auto targets = find_non_decoder_targets(options, *stored); !targets.empty())
      problems.push_back(non_decoder_notice(config, model, targets));
  if (!with_notices)
    std::erase_if(problems, [](const Problem& p) { return p.severity == Severity::kNotice; });
  return problems;
}

}  // namespace ftrun
