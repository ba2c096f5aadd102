#include "model/adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/module_paths.h"
#include "base/pattern.h"
#include "base/text.h"
#include "model/linear_products.h"
#include "model/multimodal.h"

namespace ftrun {
namespace {

constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight",
                           kMagnitude = ".lora_magnitude_vector";

/// kModulesOfOtherParts are modules as a multimodal model's vision tower and projector have them.
constexpr std::array<const char*, 2> kModulesOfOtherParts{
    "model.vision_tower.encoder.layers.0.self_attn.q_proj", "model.multi_modal_projector.linear_1"};

template <class T>
bool contains(const std::vector<T>& list, const T& wanted) {
  return std::find(list.begin(), list.end(), wanted) != list.end();
}

bool is_matrix_outside_blocks(const TensorNames& family, const std::string& entry) {
  return entry == last_part(family.head) || entry == last_part(family.embedding);
}

std::string no_module_text(const TensorNames& family, std::string_view key,
                           const std::string& entry) {
  if (is_matrix_outside_blocks(family, entry))
    return cat(key, " \"", entry,
               "\": adapters of this matrix are not supported; modules_to_save trains it whole");
  const std::vector<std::string> names = adaptable_names(family);
  return cat(key, " \"", entry, "\": no module has this name", did_you_mean(nearest(entry, names)),
             "; there are ", join(names, ", "));
}

/// ModuleChoice collects what is wrong; it compiles each expression once. Modules have the names
/// that they have in memory, as in PEFT.
class ModuleChoice {
 public:
  ModuleChoice(const LoraOptions& options, const TensorNames& family, bool is_multimodal)
      : options_(options),
        family_(family),
        is_multimodal_(is_multimodal),
        targets_(options.target_modules) {
    if (targets_.empty() && options.target_pattern.empty()) targets_ = adapted_by_default(family);
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

  /// Returns the name in memory of a module of the decoder.
  std::string in_memory(std::string_view module) const {
    return is_multimodal_ ? name_in_multimodal_model(module, family_.root) : std::string(module);
  }

  bool wants(const std::string& module) {
    if (target_) return matches(*target_, module);
    bool any = false;
    for (const std::string& entry : targets_)
      if (entry == kAllLinear || ends_at_dot(module, entry)) any = note(entry);
    return any;
  }

  bool excludes(const std::string& module) {
    // PEFT matches these by the end of the path, at a dot or not.
    for (const std::string& saved : options_.saved_modules)
      if (module.ends_with(saved)) return true;
    if (exclude_) return matches(*exclude_, module) && note(options_.exclude_pattern);
    return excludes_by_name(module);
  }

  /// Returns whether an entry excludes a module by its name, also one that is not wanted: such an
  /// entry is not mistyped.
  bool excludes_by_name(const std::string& module) {
    bool any = false;
    for (const std::string& entry : options_.exclude_modules)
      if (ends_at_dot(module, entry)) any = note(entry);
    return any;
  }

  /// Refuses modules that the expression matches although they are not products of a block.
  void refuse_others(const ModelConfig& config) {
    if (!target_) return;
    std::vector<std::string> others;
    for (const std::string_view module :
         {family_.head, family_.embedding, family_.norm, family_.positions})
      if (!module.empty()) others.push_back(in_memory(module));
    std::vector<std::string_view> norms;
    if (config.input_norm) norms.push_back(input_norm_name(family_, config));
    if (config.mlp_norm) norms.push_back(post_norm_name(family_, config));
    if (config.output_norms)
      norms.insert(norms.end(), {family_.attention_output_norm, family_.mlp_output_norm});
    if (config.qk_norm != QkNorm::kNone)
      norms.insert(norms.end(), {family_.q_norm, family_.k_norm});
    for (int64_t layer = 0; layer < config.layers; ++layer)
      for (const std::string_view norm : norms)
        others.push_back(in_memory(family_.in_block(layer, norm)));
    for (const std::string& module : others)
      if (matches(*target_, module) && !excludes(module)) {
        problems.push_back(
            cat("target_modules \"", options_.target_pattern.substr(0, 80), "\": matches ", module,
                ", which can have no adapter here; modules_to_save trains it whole"));
        return;
      }
  }

  LowRank adapter_of(const std::string& module) {
    LowRank adapter;
    adapter.rank = first_match(ranks_, module).value_or(options_.r);
    const double alpha = first_match(alphas_, module).value_or(options_.alpha);
    const auto rank = static_cast<double>(adapter.rank);
    if (options_.begin == LoraInit::kOrthogonal && adapter.rank % 2 != 0 &&
        !std::exchange(told_odd_, true))
      problems.push_back(cat("init_lora_weights orthogonal: ", module, " has rank ", adapter.rank,
                             ", which is not even; make r and the ranks of rank_pattern even"));
    adapter.scale = alpha / (options_.rank_stabilized ? std::sqrt(rank) : rank);
    return adapter;
  }

  /// Entries and expressions that matched nothing.
  void report_unused() {
    for (const std::string& entry : targets_)
      if (!used_.contains(entry))
        problems.push_back(no_module_text(family_, "target_modules", entry));
    // A module of another part of the model never gets an adapter.
    const auto is_other = [&](const std::string& entry) {
      return ends_at_dot(in_memory(family_.head), entry) ||
             ends_at_dot(in_memory(family_.embedding), entry);
    };
    for (const std::string& entry : options_.exclude_modules)
      if (!used_.contains(entry) && !is_other(entry))
        problems.push_back(no_module_text(family_, "exclude_modules", entry));
    if (exclude_ && !used_.contains(options_.exclude_pattern) && !excludes_other_parts())
      problems.push_back(cat("exclude_modules \"", options_.exclude_pattern.substr(0, 80),
                             "\": matches none of the modules that target_modules chooses"));
    report_unused("rank_pattern", ranks_);
    report_unused("alpha_pattern", alphas_);
  }

  std::vector<std::string> problems;

 private:
  using Pattern = std::optional<std::regex>;

  /// NumberOfModules is a rank or alpha for the modules whose paths end with a pattern.
  template <class T>
  struct NumberOfModules {
    std::string written;
    /// The compiled pattern; nothing if it is broken.
    Pattern pattern;
    T number;
  };

  /// Returns whether exclude_pattern matches modules of a multimodal model's other parts, which get
  /// no adapter anyway.
  bool excludes_other_parts() const {
    return is_multimodal_ &&
           std::any_of(kModulesOfOtherParts.begin(), kModulesOfOtherParts.end(),
                       [&](const char* module) { return matches(*exclude_, module); });
  }

  static bool matches(const std::regex& pattern, const std::string& module) {
    return std::regex_match(module, pattern);
  }

  Pattern compile(const std::string& text, std::string_view key) {
    if (text.empty()) return std::nullopt;
    try {
      return user_pattern(text);
    } catch (const Error& error) {
      problems.push_back(cat(key, " \"", text.substr(0, 80), "\": ", error.message()));
      return std::nullopt;
    }
  }

  bool note(const std::string& entry) {
    used_.insert(entry);
    return true;
  }

  /// Compiles an expression of the end of a path.
  Pattern compile_end(const std::string& text, std::string_view key) {
    return compile(cat("(.*\\.)?(", text, ")"), key);
  }

  template <class T>
  void report_unused(std::string_view key, const std::vector<NumberOfModules<T>>& all) {
    for (const NumberOfModules<T>& one : all)
      if (!used_.contains(one.written))
        problems.push_back(cat(key, " \"", one.written.substr(0, 80),
                               "\": no module with an adapter has a path that ends so"));
  }

  /// Finds the number of the first pattern that matches. A pattern that matches after another is
  /// marked as used too: without that other it would count.
  template <class T>
  std::optional<T> first_match(const std::vector<NumberOfModules<T>>& all,
                               const std::string& module) {
    std::optional<T> found;
    for (const NumberOfModules<T>& one : all) {
      if (!one.pattern || !matches(*one.pattern, module)) continue;
      note(one.written);
      if (!found) found = one.number;
    }
    return found;
  }

  const LoraOptions& options_;
  const TensorNames& family_;
  bool is_multimodal_;
  std::vector<std::string> targets_;
  Pattern target_, exclude_;
  std::vector<NumberOfModules<int64_t>> ranks_;
  std::vector<NumberOfModules<double>> alphas_;
  std::set<std::string> used_;
  bool told_odd_ = false;
};

void require_blocks(const ModelConfig& config, const LoraOptions& options,
                    std::vector<std::string>& problems) {
  for (const int64_t layer : options.layers)
    if (layer < 0 || layer >= config.layers)
      problems.push_back(
          cat("layers_to_transform ", layer, ": the model has layers 0 to ", config.layers - 1));
  if (!options.layers.empty() && !options.target_pattern.empty())
    problems.push_back(
        "layers_to_transform: only with target_modules as a list; say it in the expression");
}

}  // namespace

Adapter make_adapter(const ModelConfig& config, const LoraOptions& options) {
  const TensorNames& names = tensor_names(config.family);
  ModuleChoice choice(options, names, !config.multimodal.empty());
  require_blocks(config, options, choice.problems);
  if (options.r <= 0) choice.problems.push_back(cat("r ", options.r, ": must be above 0"));
  Adapter adapter;
  adapter.begin = options.begin;
  adapter.dropout = options.dropout;
  bool any = false;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    BlockAdapter block;
    block.magnitudes = options.magnitudes;
    const bool is_wanted = options.layers.empty() || contains(options.layers, layer);
    for (const ProductModule& of_products : product_modules(names)) {
      const std::string module = choice.in_memory(names.in_block(layer, of_products.name));
      if (!choice.wants(module)) {
        choice.excludes_by_name(module);
        continue;
      }
      // A path that is written out counts in any layer, as in PEFT.
      if (choice.excludes(module) || !(is_wanted || contains(options.target_modules, module)))
        continue;
      const LowRank low = choice.adapter_of(module);
      for (const Projection projection : of_products.products)
        block.of[static_cast<size_t>(projection)] = low;
      any = true;
    }
    adapter.blocks.push_back(block);
  }
  choice.refuse_others(config);
  choice.report_unused();
  if (!any && choice.problems.empty())
    choice.problems.push_back("no module of the model is chosen");
  if (!choice.problems.empty())
    throw Error(
        ExitCode::kUsage,
        cat("adapter: it does not fit the model\n  ", join(choice.problems, "\n  ")),
        cat("target_modules takes names of modules (", join(adapted_by_default(names), ", "),
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
