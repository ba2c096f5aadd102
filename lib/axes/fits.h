#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "config/config.h"
#include "model/config.h"

namespace ftrun {

/// ModelMisfit says why a model cannot be cut as a resolved config asks, and by which key.
struct ModelMisfit {
  std::string key;
  Error error;
};

/// FitCheck says why a model does not fit the degree of one axis.
struct FitCheck {
  /// Explains why; nothing where it fits.
  std::optional<ModelMisfit> (*misfit)(const Config&, const ModelConfig&);
  /// Says that the check may be asked though the config's own keys contradict each other.
  bool of_any_config;
};
namespace fit_checks {
#define FTRUN_CUT_AXIS(name) extern const FitCheck name;
#include "axes/axes.inc"
}  // namespace fit_checks

/// Explains why a model cannot be cut along the axes of a config; nothing where it can. If the
/// config's own keys contradict each other, only the axes that do not mind are asked.
std::optional<ModelMisfit> model_misfit(const Config& config, const ModelConfig& model,
                                        bool contradicts = false);

}  // namespace ftrun
