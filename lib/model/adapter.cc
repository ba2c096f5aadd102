#include "model/adapter.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/pattern.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr std::array<std::string_view, kProjections> kNames{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                            "gate_proj", "up_proj", "down_proj"};
constexpr std::string_view kAllLinear = "all-linear";
constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";

/// A path is the entry, or ends with "." and the entry.
bool ends_at_dot(const std::string& path, const std::string& entry) {
  return path == entry || path.ends_with("." + entry);
}

/// Collects what is wrong; compiles each expression once.
class Choice {
 public:
  explicit Choice(const LoraOptions& options) : options_(options) {
    target_ = compile(options.target_pattern, "target_modules");
    exclude_ = compile(options.exclude_pattern, "exclude_modules");
    for (const auto& [pattern, rank] : options.rank_pattern) {
      ranks_.emplace_back(compile(cat("(.*\\.)?(", pattern, ")"), "rank_pattern"), rank);
      if (rank <= 0) problems.push_back(cat("rank_pattern \"", pattern, "\": rank ", rank, " is not above 0"));
    }
    for (const auto& [pattern, alpha] : options.alpha_pattern)
      alphas_.emplace_back(compile(cat("(.*\\.)?(", pattern, ")"), "alpha_pattern"), alpha);
  }

  bool wants(const std::string& module, bool is_product) {
    if (target_) return matches(*target_, module);
    for (const std::string& entry : options_.target_modules)
      if (entry == kAllLinear ? is_product : ends_at_dot(module, entry)) {
        used_.insert(entry);
        return true;
      }
    return false;
  }

  bool excludes(const std::string& module) const {
    if (exclude_) return matches(*exclude_, module);
    return std::any_of(options_.exclude_modules.begin(), options_.exclude_modules.end(),
                       [&](const std::string& entry) { return ends_at_dot(module, entry); });
  }

  LowRank adapter_of(const std::string& module) const {
    LowRank adapter;
    adapter.rank = first_match(ranks_, module).value_or(options_.r);
    const double alpha = first_match(alphas_, module).value_or(options_.alpha);
    const auto rank = static_cast<double>(adapter.rank);
    adapter.scale = alpha / (options_.rank_stabilized ? std::sqrt(rank) : rank);
    return adapter;
  }

  /// Entries that chose nothing.
  std::vector<std::string> unused() const {
    std::vector<std::string> all;
    for (const std::string& entry : options_.target_modules)
      if (!used_.contains(entry)) all.push_back(entry);
    return all;
  }

  std::vector<std::string> problems;

 private:
  using Pattern = std::optional<std::regex>;

  static bool matches(const std::regex& pattern, const std::string& module) { return std::regex_match(module, pattern); }

  Pattern compile(const std::string& text, std::string_view key) {
    if (text.empty()) return std::nullopt;
    try {
      return user_pattern(text);
    } catch (const Error& error) {
      problems.push_back(cat(key, " \"", text.substr(0, 80), "\": ", error.message()));
      return std::nullopt;
    }
  }

  template <class T>
  static std::optional<T> first_match(const std::vector<std::pair<Pattern, T>>& all, const std::string& module) {
    for (const auto& [pattern, value] : all)
      if (pattern && matches(*pattern, module)) return value;
    return std::nullopt;
  }

  const LoraOptions& options_;
  Pattern target_, exclude_;
  std::vector<std::pair<Pattern, int64_t>> ranks_;
  std::vector<std::pair<Pattern, double>> alphas_;
  std::set<std::string> used_;
};

std::string no_module_text(const std::string& entry) {
  if (entry == "lm_head" || entry == "embed_tokens")
    return cat("target_modules \"", entry, "\": adapters of this matrix are not supported; modules_to_save trains it whole");
  const std::vector<std::string> names(kNames.begin(), kNames.end());
  const std::string close = nearest(entry, names);
  return cat("target_modules \"", entry, "\": no module has this name", close.empty() ? "" : cat(" (did you mean \"", close, "\"?)"),
             "; there are ", join(names, ", "));
}

void require_blocks(const ModelConfig& config, const LoraOptions& options, std::vector<std::string>& problems) {
  for (const int64_t layer : options.layers)
    if (layer < 0 || layer >= config.layers)
      problems.push_back(cat("layers_to_transform ", layer, ": the model has layers 0 to ", config.layers - 1));
  if (!options.layers.empty() && !options.target_pattern.empty())
    problems.push_back("layers_to_transform: only with target_modules as a list; say it in the expression");
}

}  // namespace

std::string_view projection_name(Projection projection) { return kNames[static_cast<size_t>(projection)]; }

std::string projection_module(int64_t layer, Projection projection) {
  const char* part = projection <= Projection::kO ? "self_attn." : "mlp.";
  return cat("model.layers.", layer, ".", part, projection_name(projection));
}

Adapter make_adapter(const ModelConfig& config, const LoraOptions& options) {
  Choice choice(options);
  require_blocks(config, options, choice.problems);
  if (options.r <= 0) choice.problems.push_back(cat("r ", options.r, ": must be above 0"));
  Adapter adapter;
  adapter.begin = options.begin;
  bool any = false;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    BlockAdapter block;
    const bool is_wanted = options.layers.empty() ||
                           std::find(options.layers.begin(), options.layers.end(), layer) != options.layers.end();
    for (size_t p = 0; p < kProjections; ++p) {
      const std::string module = projection_module(layer, static_cast<Projection>(p));
      if (!choice.wants(module, true) || !is_wanted || choice.excludes(module)) continue;
      block.of[p] = choice.adapter_of(module);
      any = true;
    }
    adapter.blocks.push_back(block);
  }
  for (const std::string& entry : choice.unused()) choice.problems.push_back(no_module_text(entry));
  if (!any && choice.problems.empty()) choice.problems.push_back("no module of the model is chosen");
  if (!choice.problems.empty())
    throw Error(ExitCode::kUsage, cat("adapter: it does not fit the model\n  ", join(choice.problems, "\n  ")),
                "target_modules takes names of modules (q_proj, v_proj, ...), all-linear, or one regular expression of whole paths");
  return adapter;
}

std::string lora_a_name(const std::string& module) { return module + std::string(kLoraA); }
std::string lora_b_name(const std::string& module) { return module + std::string(kLoraB); }

bool is_lora_name(std::string_view tensor) { return tensor.ends_with(kLoraA) || tensor.ends_with(kLoraB); }

}  // namespace ftrun
