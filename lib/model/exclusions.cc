#include "model/exclusions.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <regex>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/pattern.h"
#include "base/text.h"
#include "model/module_paths.h"
#include "model/multimodal.h"

namespace ftrun {
namespace {

/// Returns a function that says whether an entry, or the expression, of exclude_modules names a
/// module.
std::function<bool(const std::string&)> make_matcher(const LoraOptions& options,
                                                     const std::string& entry) {
  if (options.exclude_pattern.empty())
    return [entry](const std::string& module) { return matches_path_suffix(module, entry); };
  return [pattern = compile_pattern(entry)](const std::string& module) {
    return std::regex_match(module, pattern);
  };
}

LoraOptions without_exclusion(LoraOptions options, const std::string& entry) {
  std::erase(options.exclude_modules, entry);
  options.exclude_pattern.clear();
  return options;
}

/// Returns the adapter that the options choose; nothing if make_adapter() refuses them.
std::optional<Adapter> try_make_adapter(const ModelConfig& config, LoraOptions options) {
  // Ranks and scales do not choose modules.
  options.r = 1;
  options.rank_pattern.clear();
  options.alpha_pattern.clear();
  options.init = LoraInit::kUniform;
  try {
    return make_adapter(config, options);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// ModuleChoices holds the modules that options choose: the decoder's adapter (nothing if the
/// options are refused), and modules of other parts (none if the folder's tensors are unknown).
struct ModuleChoices {
  std::optional<Adapter> adapter;
  std::vector<NonDecoderTarget> non_decoder;
  bool operator==(const ModuleChoices&) const = default;
};

ModuleChoices choose_modules(const ModelConfig& config, const LoraOptions& options,
                             const StoredShapes* stored) {
  ModuleChoices choices{.adapter = try_make_adapter(config, options)};
  if (stored != nullptr) choices.non_decoder = find_non_decoder_targets(options, *stored);
  return choices;
}

/// Returns the end of a path that has as many parts as the entry.
std::string_view last_parts(std::string_view path, const std::string& entry) {
  size_t begin = path.size();
  for (auto dots = std::count(entry.begin(), entry.end(), '.'); dots >= 0; --dots) {
    begin = begin == 0 ? std::string_view::npos : path.rfind('.', begin - 1);
    if (begin == std::string_view::npos) return path;
  }
  return path.substr(begin + 1);
}

/// Finds the end of a path that is spelled most like an entry.
std::string nearest_end(const std::vector<std::string>& paths, const std::string& entry) {
  std::set<std::string> ends;
  for (const std::string& path : paths) ends.emplace(last_parts(path, entry));
  return closest_match(entry, {ends.begin(), ends.end()});
}

bool is_broken(const std::string& expression) {
  try {
    compile_pattern(expression);
  } catch (const Error&) {
    return true;
  }
  return false;
}

}  // namespace

std::vector<IneffectiveExclusion> find_ineffective_exclusions(const ModelConfig& config,
                                                              const LoraOptions& options,
                                                              const StoredShapes* stored) {
  const std::string& pattern = options.exclude_pattern;
  if (pattern.find(kNonDecoderPattern) != std::string::npos) return {};
  if (is_broken(pattern) || is_broken(options.target_pattern)) return {};
  std::vector<std::string> entries = options.exclude_modules;
  if (!pattern.empty()) entries = {pattern};
  const ModuleChoices all_choices = choose_modules(config, options, stored);
  std::erase_if(entries, [&](const std::string& entry) {
    return choose_modules(config, without_exclusion(options, entry), stored) != all_choices;
  });
  if (entries.empty()) return {};
  std::vector<std::string> modules = decoder_modules(config);
  if (stored != nullptr)
    for (const NonDecoderModule& module : list_non_decoder_modules(*stored))
      modules.push_back(module.name);
  const std::vector<std::string> parents = parent_modules(modules);
  std::vector<IneffectiveExclusion> ineffective;
  for (const std::string& entry : entries) {
    const auto matches = make_matcher(options, entry);
    const auto module = std::find_if(modules.begin(), modules.end(), matches);
    const auto parent = std::find_if(parents.begin(), parents.end(), matches);
    if (module != modules.end())
      ineffective.push_back({entry, ExclusionProblem::kNoAdapter, *module});
    else if (parent != parents.end())
      ineffective.push_back({entry, ExclusionProblem::kHoldsOthers, *parent});
    else if (stored != nullptr || config.multimodal.empty())
      ineffective.push_back({entry, ExclusionProblem::kUnknown, nearest_end(modules, entry)});
  }
  return ineffective;
}

}  // namespace ftrun
