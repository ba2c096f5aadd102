#include "axes/model_fit.h"

namespace ftrun {

std::optional<ModelFitProblem> find_model_fit_problem(const Config& config,
                                                      const ModelConfig& model,
                                                      bool config_has_errors) {
  const ModelFitCheck* const checks[] = {
#define FTRUN_MODEL_FIT_AXIS(name) &model_fit_checks::name,
#include "axes/axes.inc"
  };
  for (const ModelFitCheck* check : checks) {
    if (config_has_errors && !check->runs_despite_errors) continue;
    if (auto problem = check->find_problem(config, model)) return problem;
  }
  return std::nullopt;
}

}  // namespace ftrun
