#include "model/non_decoder_modules.h"

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <string_view>

#include "base/error.h"
#include "base/module_names.h"
#include "base/pattern.h"
#include "base/text.h"
#include "model/multimodal.h"

namespace ftrun {
namespace {

/// Returns whether the path contains the entry's parts next to each other, at any position.
bool holds_parts(const std::string& path, const std::string& entry) {
  return cat(".", path, ".").find(cat(".", entry, ".")) != std::string::npos;
}

/// Returns the number of a module's layer as PEFT finds it: the first part of the path that is a
/// number and has two parts before it and one after it; "" for none.
std::string layer_in_path(const std::string& path) {
  const std::vector<std::string> parts = split(path, '.');
  for (size_t i = 2; i + 1 < parts.size(); ++i)
    if (parts[i].find_first_not_of("0123456789") == std::string::npos) return parts[i];
  return "";
}

bool is_excluded(const LoraOptions& options, const std::optional<std::regex>& pattern,
                 const std::string& module) {
  if (pattern && std::regex_match(module, *pattern)) return true;
  const auto any = [](const std::vector<std::string>& entries, auto holds) {
    return std::any_of(entries.begin(), entries.end(), holds);
  };
  return any(options.exclude_modules,
             [&](const std::string& entry) { return matches_path_suffix(module, entry); }) ||
         any(options.saved_modules,
             [&](const std::string& entry) { return holds_parts(module, entry); });
}

bool names_module(const LoraOptions& options, const std::string& entry,
                  const NonDecoderModule& module) {
  // PEFT replaces all-linear by whole paths, to which the choice of layers does not apply.
  if (entry == kAllLinear) return module.is_linear;
  if (module.name == entry) return true;
  if (!matches_path_suffix(module.name, entry)) return false;
  const std::string module_layer = layer_in_path(module.name);
  return options.layers.empty() ||
         std::any_of(options.layers.begin(), options.layers.end(),
                     [&](int64_t layer) { return std::to_string(layer) == module_layer; });
}

std::optional<std::regex> compile_if_written(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(compile_pattern(text));
}

}  // namespace

std::vector<NonDecoderModule> list_non_decoder_modules(const StoredShapes& stored) {
  std::map<std::string, NonDecoderModule> modules;
  for (const auto& [tensor, shape] : stored) {
    const bool is_weight = tensor.ends_with(".weight");
    if (!is_outside_decoder(tensor) || (!is_weight && !tensor.ends_with(".bias"))) continue;
    const std::string in_memory = uses_in_memory_names(tensor) ? tensor : cat("model.", tensor);
    const std::string name = in_memory.substr(0, in_memory.rfind('.'));
    NonDecoderModule& module = modules[name];
    module.name = name;
    const size_t part = std::string_view("model.").size();
    module.part = name.substr(part, name.find('.', part) - part);
    if (is_weight && shape.size() == 2)
      module.is_linear =
          std::string_view(last_path_part(name)).find("embed") == std::string_view::npos;
  }
  std::vector<NonDecoderModule> list;
  for (auto& [name, module] : modules) list.push_back(std::move(module));
  return list;
}

std::vector<NonDecoderTarget> find_non_decoder_targets(const LoraOptions& options,
                                                       const StoredShapes& stored) {
  const std::optional<std::regex> target = compile_if_written(options.target_pattern),
                                  exclude = compile_if_written(options.exclude_pattern);
  std::vector<NonDecoderModule> modules = list_non_decoder_modules(stored);
  std::erase_if(modules, [&](const NonDecoderModule& module) {
    return is_excluded(options, exclude, module.name);
  });
  std::vector<std::string> entries = options.target_modules;
  if (target) entries = {options.target_pattern};
  std::vector<NonDecoderTarget> choices;
  for (const std::string& entry : entries) {
    std::map<std::string, NonDecoderTarget> of_part;
    for (const NonDecoderModule& module : modules) {
      if (target ? !std::regex_match(module.name, *target) : !names_module(options, entry, module))
        continue;
      NonDecoderTarget& choice = of_part[module.part];
      if (choice.module_count++ == 0) choice = {entry, module.part, 1, module.name};
    }
    for (auto& [part, choice] : of_part) choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace ftrun
