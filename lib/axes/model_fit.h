#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "config/config.h"
#include "model/model_config.h"

namespace ftrun {

/// ModelFitProblem holds the reason why a model cannot be divided as a resolved config asks, and
/// the key that requests it.
struct ModelFitProblem {
  std::string key;
  Error error;
};

/// ModelFitCheck says why a model does not fit the degree of one axis.
struct ModelFitCheck {
  /// Returns why the model does not fit the axis; nothing if it fits.
  std::optional<ModelFitProblem> (*find_problem)(const Config&, const ModelConfig&);
  /// Says whether the check also runs if the config's own keys contradict each other.
  bool runs_despite_errors;
};
namespace model_fit_checks {
#define FTRUN_MODEL_FIT_AXIS(name) extern const ModelFitCheck name;
#include "axes/axes.inc"
}  // namespace model_fit_checks

/// Returns why a model cannot be divided along the axes of a config; nothing if it can. If the
/// config's own keys contradict each other (`config_has_errors`), only the checks that do not need
/// a consistent config run.
std::optional<ModelFitProblem> find_model_fit_problem(const Config& config,
                                                      const ModelConfig& model,
                                                      bool config_has_errors = false);

}  // namespace ftrun
