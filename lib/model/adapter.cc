#include "model/adapter.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/module_names.h"
#include "base/pattern.h"
#include "base/text.h"
#include "model/module_paths.h"

namespace ftrun {
namespace {

constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight",
                           kMagnitude = ".lora_magnitude_vector";

template <class T>
bool contains(const std::vector<T>& list, const T& wanted) {
  return std::find(list.begin(), list.end(), wanted) != list.end();
}

bool is_matrix_outside_blocks(const TensorNames& family, const std::string& entry) {
  return entry == last_path_part(family.head) || entry == last_path_part(family.embedding);
}

std::string no_target_text(const TensorNames& family, const std::string& entry) {
  if (is_matrix_outside_blocks(family, entry))
    return cat("target_modules \"", entry,
               "\": adapters of this matrix are not supported; modules_to_save trains it whole");
  const std::vector<std::string> names = adaptable_module_names(family);
  return cat("target_modules \"", entry, "\": no module has this name",
             did_you_mean(closest_match(entry, names)), "; there are ", join(names, ", "));
}

/// ModuleChoice decides which modules get an adapter, and collects the problems of the options. It
/// compiles each expression once. Module names are those in memory, as in PEFT.
class ModuleChoice {
 public:
  ModuleChoice(const LoraOptions& options, const TensorNames& family)
      : options_(options), family_(family), targets_(options.target_modules) {
    if (targets_.empty() && options.target_pattern.empty())
      targets_ = default_target_modules(family);
    target_ = compile(options.target_pattern, "target_modules");
    exclude_ = compile(options.exclude_pattern, "exclude_modules");
    for (const auto& [pattern, rank] : options.rank_pattern) {
      ranks_.push_back({pattern, compile_end(pattern, "rank_pattern"), rank});
      if (rank <= 0)
        problems.push_back(cat("rank_pattern \"", pattern, "\": rank ", rank, " is not above 0"));
    }
    for (const auto& [pattern, alpha] : options.alpha_pattern)
      alphas_.push_back({pattern, compile_end(pattern, "alpha_pattern"), alpha});
  }

  bool is_target(const std::string& module) {
    if (target_) return matches(*target_, module);
    bool any = false;
    for (const std::string& entry : targets_)
      if (entry == kAllLinear || matches_path_suffix(module, entry)) any = mark_used(entry);
    return any;
  }

  bool excludes(const std::string& module) const {
    // PEFT matches these with the end of the path, even if the match does not begin after a dot.
    for (const std::string& saved : options_.saved_modules)
      if (module.ends_with(saved)) return true;
    if (exclude_) return matches(*exclude_, module);
    return std::any_of(
        options_.exclude_modules.begin(), options_.exclude_modules.end(),
        [&](const std::string& entry) { return matches_path_suffix(module, entry); });
  }

  /// Refuses modules that the expression matches although they are not linear layers of a block.
  void refuse_other_modules(const ModelConfig& config) {
    if (!target_) return;
    for (const std::string& module : modules_beside_projections(config))
      if (matches(*target_, module) && !excludes(module)) {
        problems.push_back(
            cat("target_modules \"", options_.target_pattern.substr(0, 80), "\": matches ", module,
                ", which cannot have an adapter here; modules_to_save trains it as a whole"));
        return;
      }
  }

  LowRankAdapter adapter_of(const std::string& module) {
    LowRankAdapter adapter;
    adapter.rank = first_matching_value(ranks_, module).value_or(options_.r);
    const double alpha = first_matching_value(alphas_, module).value_or(options_.alpha);
    const auto rank = static_cast<double>(adapter.rank);
    if (options_.init == LoraInit::kOrthogonal && adapter.rank % 2 != 0 &&
        !std::exchange(has_reported_odd_rank_, true))
      problems.push_back(cat("init_lora_weights orthogonal: ", module, " has rank ", adapter.rank,
                             ", which is not even; make r and the ranks of rank_pattern even"));
    adapter.scale = alpha / (options_.rank_stabilized ? std::sqrt(rank) : rank);
    return adapter;
  }

  /// Reports entries and expressions that matched nothing, except those of exclude_modules, which
  /// PEFT accepts, too (model/exclusions.h).
  void report_unused() {
    for (const std::string& entry : targets_)
      if (!used_.contains(entry)) problems.push_back(no_target_text(family_, entry));
    report_unused("rank_pattern", ranks_);
    report_unused("alpha_pattern", alphas_);
  }

  std::vector<std::string> problems;

 private:
  using Pattern = std::optional<std::regex>;

  /// PatternValue is a rank or alpha for the modules whose paths end with a pattern.
  template <class T>
  struct PatternValue {
    std::string text;
    /// The compiled pattern; nothing if it is broken.
    Pattern pattern;
    T value;
  };

  static bool matches(const std::regex& pattern, const std::string& module) {
    return std::regex_match(module, pattern);
  }

  Pattern compile(const std::string& text, std::string_view key) {
    if (text.empty()) return std::nullopt;
    try {
      return compile_pattern(text);
    } catch (const Error& error) {
      problems.push_back(cat(key, " \"", text.substr(0, 80), "\": ", error.message()));
      return std::nullopt;
    }
  }

  bool mark_used(const std::string& entry) {
    used_.insert(entry);
    return true;
  }

  /// Compiles an expression that must match the end of a path.
  Pattern compile_end(const std::string& text, std::string_view key) {
    return compile(cat("(.*\\.)?(", text, ")"), key);
  }

  template <class T>
  void report_unused(std::string_view key, const std::vector<PatternValue<T>>& entries) {
    for (const PatternValue<T>& entry : entries)
      if (!used_.contains(entry.text))
        problems.push_back(cat(key, " \"", entry.text.substr(0, 80),
                               "\": no module with an adapter has a path that ends so"));
  }

  /// Finds the number of the first pattern that matches. Later patterns that match are also marked
  /// as used, because they would count without the first one.
  template <class T>
  std::optional<T> first_matching_value(const std::vector<PatternValue<T>>& entries,
                                        const std::string& module) {
    std::optional<T> value;
    for (const PatternValue<T>& entry : entries) {
      if (!entry.pattern || !matches(*entry.pattern, module)) continue;
      mark_used(entry.text);
      if (!value) value = entry.value;
    }
    return value;
  }

  const LoraOptions& options_;
  const TensorNames& family_;
  std::vector<std::string> targets_;
  Pattern target_, exclude_;
  std::vector<PatternValue<int64_t>> ranks_;
  std::vector<PatternValue<double>> alphas_;
  std::set<std::string> used_;
  bool has_reported_odd_rank_ = false;
};

void check_blocks(const ModelConfig& config, const LoraOptions& options,
                  std::vector<std::string>& problems) {
  for (const int64_t layer : options.layers)
    if (layer < 0 || layer >= config.layers)
      problems.push_back(
          cat("layers_to_transform ", layer, ": the model has layers 0 to ", config.layers - 1));
  if (!options.layers.empty() && !options.target_pattern.empty())
    problems.push_back(
        "layers_to_transform cannot be used with a regular expression in target_modules; name the "
        "layers in the expression");
}

/// Describes the problem that no module is chosen, and how a single text in place of a list was
/// understood.
std::string nothing_chosen_text(const ModelConfig& config, const std::string& pattern) {
  const std::string text = "no module of the model is chosen";
  if (pattern.empty()) return text;
  const TensorNames& names = tensor_names(config.family);
  const std::string all(kAllLinear), list = suggest_name_list(pattern);
  return cat(text, ": \"", pattern.substr(0, 80), "\" is a regular expression of whole paths (",
             path_in_memory(config, names.in_block(0, names.linear_layer(Projection::kQ))), ")",
             !closest_match(pattern, {all}).empty() ? did_you_mean(all)
             : list.empty()                         ? ""
                                                    : cat("; names are a list: ", list));
}

}  // namespace

Adapter make_adapter(const ModelConfig& config, const LoraOptions& options) {
  const TensorNames& names = tensor_names(config.family);
  ModuleChoice choice(options, names);
  check_blocks(config, options, choice.problems);
  if (options.r <= 0) choice.problems.push_back(cat("r ", options.r, ": must be above 0"));
  Adapter adapter;
  adapter.init = options.init;
  adapter.dropout = options.dropout;
  bool any = false;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    BlockAdapter block;
    block.magnitudes = options.magnitudes;
    const bool is_chosen_layer = options.layers.empty() || contains(options.layers, layer);
    for (const LinearModule& linear : linear_modules(names)) {
      const std::string module = path_in_memory(config, names.in_block(layer, linear.name));
      // An entry that is a whole path counts regardless of the chosen layers, as in PEFT.
      if (!choice.is_target(module) || choice.excludes(module) ||
          !(is_chosen_layer || contains(options.target_modules, module)))
        continue;
      const LowRankAdapter low_rank = choice.adapter_of(module);
      for (const Projection projection : linear.projections)
        block.by_projection[static_cast<size_t>(projection)] = low_rank;
      any = true;
    }
    adapter.blocks.push_back(block);
  }
  choice.refuse_other_modules(config);
  choice.report_unused();
  if (!any && choice.problems.empty())
    choice.problems.push_back(nothing_chosen_text(config, options.target_pattern));
  if (!choice.problems.empty())
    throw Error(
        ExitCode::kUsage,
        cat("adapter: it does not fit the model\n  ", join(choice.problems, "\n  ")),
        cat("write target_modules as names of modules (", join(default_target_modules(names), ", "),
            ", ...), all-linear, or one regular expression of whole paths"));
  return adapter;
}

std::string lora_a_name(const std::string& module) {
  return module + std::string(kLoraA);
}
std::string lora_b_name(const std::string& module) {
  return module + std::string(kLoraB);
}

std::string lora_magnitude_name(const std::string& module) {
  return module + std::string(kMagnitude);
}

bool is_lora_name(std::string_view tensor) {
  return tensor.ends_with(kLoraA) || tensor.ends_with(kLoraB) || tensor.ends_with(kMagnitude);
}

std::string lora_module(const std::string& tensor) {
  require(is_lora_name(tensor), "the tensor belongs to a low-rank adapter");
  return tensor.substr(0, tensor.rfind(".lora_"));
}

}  // namespace ftrun
