#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "optimizers/optimizer_config.h"

namespace ftrun {

/// Hyperparameter is a supported key of optimizer.params, and the member of OptimizerConfig
/// that holds it.
struct Hyperparameter {
  const char* name = "";
  /// The parameter's text in docs/config.md.
  const char* doc = "";
  std::variant<double OptimizerConfig::*, bool OptimizerConfig::*,
               std::array<double, 2> OptimizerConfig::*>
      member;
  /// Numbers are at least `minimum` and less than `upper_bound`.
  std::optional<double> minimum = {};
  std::optional<double> upper_bound = {};
};

/// Hyperparameters that several optimizers have.
namespace hyperparameters {
inline constexpr Hyperparameter kLr{"lr", "Learning rate.", &OptimizerConfig::lr, 0};
inline constexpr Hyperparameter kBetas{"betas", "Decay rates of the two moments.",
                                       &OptimizerConfig::betas, 0, 1};
inline constexpr Hyperparameter kEps{"eps", "Added to the root of the second moment.",
                                     &OptimizerConfig::eps, 0};
inline constexpr Hyperparameter kWeightDecay{"weight_decay", "Weight decay.",
                                             &OptimizerConfig::weight_decay, 0};
inline constexpr Hyperparameter kBiasCorrection{
    "bias_correction", "Divide the moments by 1 - beta^t.", &OptimizerConfig::bias_correction};
inline constexpr Hyperparameter kMomentum{"momentum", "Share of the last update that is kept.",
                                          &OptimizerConfig::momentum, 0};
inline constexpr Hyperparameter kDampening{"dampening", "Dampening of momentum.",
                                           &OptimizerConfig::dampening};
inline constexpr Hyperparameter kNesterov{"nesterov", "Nesterov momentum.",
                                          &OptimizerConfig::nesterov};
}  // namespace hyperparameters

/// OptimizerStateTraits describes a number that an optimizer keeps for each element.
struct OptimizerStateTraits {
  /// The state's name in checkpoints.
  const char* name = "";
  /// The parameter that holds the state's initial value; null: the initial value is 0.
  double OptimizerConfig::*initial_value = nullptr;
};

/// ParameterConflict specifies which values of parameters contradict each other.
struct ParameterConflict {
  /// The key of optimizer.params that the message points at.
  std::string parameter;
  std::string message;
  std::string remedy;
};

/// OptimizerTraits holds everything that planning knows about an optimizer. Its arithmetic is
/// NAME/update.inc.
struct OptimizerTraits {
  /// Other names of the optimizer in configs (torch's, Hugging Face's, bitsandbytes'), in small
  /// letters.
  std::span<const std::string_view> aliases = {};
  /// Parameters in the order in which messages list them.
  std::span<const Hyperparameter> parameters = {};
  /// Values for the parameters that a config leaves out: DeepSpeed's.
  OptimizerConfig defaults = {.lr = 1e-3};
  /// States that a run keeps, in the order in which the rule has them. Null: the optimizer is
  /// refused.
  std::span<const OptimizerStateTraits> (*states)(const OptimizerConfig& config) = nullptr;
  /// Returns what is wrong with values that are valid separately; null: any valid values fit
  /// together.
  std::optional<ParameterConflict> (*conflict)(const OptimizerConfig& config) = nullptr;
  /// States of tensors of at least OptimizerConfig::min_8bit_size elements are 8-bit codes
  /// (code_map.h) with a scale for each block; states of smaller tensors are fp32.
  bool has_8bit_states = false;
  /// The name of a boolean parameter that becomes true if a config names the type by one of its
  /// aliases; null: there is none.
  const char* alias_sets = nullptr;
  /// The optimizer of which this refused one is a variant: messages list the variant after it.
  const OptimizerTraits* variant_of = nullptr;

  bool is_offered() const { return states != nullptr; }
  bool has_parameter(std::string_view parameter) const;
};

/// Returns the traits of a type.
const OptimizerTraits& optimizer_traits(OptimizerType type);

/// Returns the states that a run keeps for each element. The optimizer must be an offered one.
std::span<const OptimizerStateTraits> optimizer_states(const OptimizerConfig& config);

/// Lists every parameter that some optimizer has, once, in the order of the entries.
const std::vector<Hyperparameter>& all_hyperparameters();

/// Lists the names of the types that have a parameter; each is followed by its variants (Adam by
/// OneBitAdam).
std::vector<std::string> types_with_parameter(std::string_view parameter);

/// Lists the classes of torch.optim that are not optimizer types here. A config that names one of
/// them gets a message that says so.
std::span<const std::string_view> torch_optimizer_classes();

/// OptimizerAlias is an alias and the name of its type.
struct OptimizerAlias {
  std::string_view alias;
  std::string_view name;
  /// OptimizerTraits::alias_sets of the type; "": none.
  std::string_view sets_parameter = "";
};
std::vector<OptimizerAlias> optimizer_aliases();

}  // namespace ftrun
