#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "base/enum_names.h"

namespace ftrun {

/// OptimizerType lists every optimizer that a config may name: those of list.inc that are offered,
/// then those that are refused.
enum class OptimizerType {
#define FTRUN_OPTIMIZER(enumerator, name, rule) k##enumerator,
#define FTRUN_REFUSED_OPTIMIZER(enumerator, name) k##enumerator,
#include "optimizers/list.inc"
#undef FTRUN_OPTIMIZER
#undef FTRUN_REFUSED_OPTIMIZER
};

/// The number of optimizers that are offered, and the number of all that have a name (offered and
/// refused).
inline constexpr size_t kOfferedOptimizers = 0
#define FTRUN_OPTIMIZER(enumerator, name, rule) +1
#include "optimizers/list.inc"
#undef FTRUN_OPTIMIZER
    ;
inline constexpr size_t kNamedOptimizers = kOfferedOptimizers
#define FTRUN_REFUSED_OPTIMIZER(enumerator, name) +1
#include "optimizers/list.inc"
#undef FTRUN_REFUSED_OPTIMIZER
    ;

template <>
struct EnumNames<OptimizerType> {
  static constexpr std::array<std::string_view, kNamedOptimizers> kNames{
#define FTRUN_OPTIMIZER(enumerator, name, rule) name,
#define FTRUN_REFUSED_OPTIMIZER(enumerator, name) name,
#include "optimizers/list.inc"
#undef FTRUN_OPTIMIZER
#undef FTRUN_REFUSED_OPTIMIZER
  };
};

/// OptimizerConfig is the config's `optimizer`: the type, and the value of every key of
/// optimizer.params. Values that a type does not use keep their defaults. In a resolved config,
/// values that the user left out are the type's own (OptimizerTraits::defaults).
struct OptimizerConfig {
  OptimizerType type = {};
  double lr = 5e-5;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool bias_correction = true;
  bool adam_w_mode = true;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  double max_coeff = 10.0;
  double min_coeff = 0.01;
  double lr_decay = 0.0;
  double initial_accumulator_value = 0.0;
  bool fp32_embeddings = false;
  double min_8bit_size = 4096;
  bool operator==(const OptimizerConfig&) const = default;
};

}  // namespace ftrun
