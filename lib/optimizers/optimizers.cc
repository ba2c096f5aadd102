#include "optimizers/optimizers.h"

#include <algorithm>

#include "base/error.h"
#include "optimizers/entries.h"

namespace ftrun {
namespace {

constexpr std::array<const OptimizerTraits*, kNamedOptimizers> kEntries{
#define FTRUN_OPTIMIZER(enumerator, name, rule) &optimizers::k##enumerator,
#define FTRUN_REFUSED_OPTIMIZER(enumerator, name) &optimizers::k##enumerator,
#include "optimizers/list.inc"
#undef FTRUN_OPTIMIZER
#undef FTRUN_REFUSED_OPTIMIZER
};

/// Lists an optimizer type and then its variants, in the order in which messages show them.
std::vector<OptimizerType> with_variants(size_t first) {
  std::vector<OptimizerType> types{static_cast<OptimizerType>(first)};
  for (size_t i = 0; i < kEntries.size(); ++i)
    if (kEntries[i]->variant_of == kEntries[first]) types.push_back(static_cast<OptimizerType>(i));
  return types;
}

}  // namespace

bool OptimizerTraits::has_parameter(std::string_view parameter) const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const Hyperparameter& own) { return own.name == parameter; });
}

const OptimizerTraits& optimizer_traits(OptimizerType type) {
  return *kEntries.at(static_cast<size_t>(type));
}

std::span<const OptimizerStateTraits> optimizer_states(const OptimizerConfig& config) {
  const OptimizerTraits& optimizer = optimizer_traits(config.type);
  require(optimizer.is_offered(), "an optimizer is refused when its config is resolved");
  return optimizer.states(config);
}

const std::vector<Hyperparameter>& all_hyperparameters() {
  static const std::vector<Hyperparameter> kAll = [] {
    std::vector<Hyperparameter> all;
    for (const OptimizerTraits* optimizer : kEntries)
      for (const Hyperparameter& own : optimizer->parameters)
        if (std::none_of(all.begin(), all.end(), [&](const Hyperparameter& other) {
              return std::string_view(other.name) == own.name;
            }))
          all.push_back(own);
    return all;
  }();
  return kAll;
}

std::vector<std::string> types_with_parameter(std::string_view parameter) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i]->variant_of != nullptr) continue;
    for (const OptimizerType type : with_variants(i))
      if (optimizer_traits(type).has_parameter(parameter)) names.emplace_back(name_of(type));
  }
  return names;
}

std::vector<OptimizerAlias> optimizer_aliases() {
  std::vector<OptimizerAlias> all;
  for (size_t i = 0; i < kEntries.size(); ++i)
    for (const std::string_view alias : kEntries[i]->aliases)
      all.push_back({alias, name_of(static_cast<OptimizerType>(i)),
                     kEntries[i]->alias_sets == nullptr ? "" : kEntries[i]->alias_sets});
  return all;
}

}  // namespace ftrun
