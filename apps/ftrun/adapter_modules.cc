#include "adapter_modules.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/module_paths.h"
#include "base/text.h"
#include "checkpoint/model_folder.h"
#include "config/model_name.h"
#include "config/peft_config.h"
#include "inputs/export_options.h"
#include "model/other_parts.h"
#include "program/lora_options.h"

namespace ftrun {
namespace {

/// Lists the names and shapes of a folder's tensors; none where it cannot be read, which others
/// report.
std::vector<std::pair<std::string, Dims>> read_names(const ModelSection& model) {
  std::vector<std::pair<std::string, Dims>> stored;
  if (model.path.empty()) return stored;
  try {
    const ModelFolder folder(folder_of(model));
    for (const std::string& name : folder.names()) stored.emplace_back(name, folder.at(name).shape);
  } catch (const Error&) {
    stored.clear();
  }
  return stored;
}

/// Writes a choice: `"q_proj" names 27 modules of vision_tower (model.vision_tower..., ...)`.
std::string choice_text(const OtherPartChoice& choice) {
  return cat("\"", choice.entry.substr(0, 80), "\" names ", count_text(choice.modules, "module"),
             " of ", choice.part, " (", choice.first, choice.modules > 1 ? ", ...)" : ")");
}

std::string remedy_text(const Config& config, const ModelConfig& model) {
  const AdapterConfig& adapter = config.adapter;
  const PeftModel peft = peft_model("", model.family, model.multimodal, model.tied);
  std::string text = cat("exclude_modules: '", exclusion_with_other_parts(adapter, peft),
                         "' makes PEFT choose what ftrun trains (the exported adapter has it)");
  const std::vector<std::string>& entries = adapter.target_modules;
  const bool are_names = std::all_of(entries.begin(), entries.end(), [](const std::string& entry) {
    return entry != kAllLinear && entry.find('.') == std::string::npos;
  });
  if (!adapter.target_pattern.empty())
    text += "; so does an expression that requires language_model in the path";
  else if (are_names && adapter.layers_to_transform.empty())
    text +=
        cat("; so does target_modules: '.*\\.language_model\\..*\\.(", join(entries, "|"), ")'");
  return text;
}

}  // namespace

std::optional<Problem> other_parts_notice(const Config& config, const ModelConfig& model) {
  if (model.multimodal.empty() || config.adapter.type == AdapterType::kNone) return std::nullopt;
  const std::vector<OtherPartChoice> choices =
      find_other_part_choices(lora_options(config.adapter), read_names(config.model));
  if (choices.empty()) return std::nullopt;
  std::vector<std::string> texts;
  for (const OtherPartChoice& choice : choices) texts.push_back(choice_text(choice));
  const char* const key =
      config.adapter.target_pattern.empty() ? "adapter.target_modules" : "adapter.target_pattern";
  return Problem{config.origins.position(key),
                 cat("adapter.target_modules: ", join(texts, "; "),
                     ": PEFT would train these too, ftrun trains only the text decoder"),
                 remedy_text(config, model), Severity::kNotice};
}

}  // namespace ftrun
