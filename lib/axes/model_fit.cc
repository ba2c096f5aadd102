#include "axes/model_fit.h"

namespace ftrun {

std::optional<ModelMisfit> model_misfit(const Config& config, const ModelConfig& model,
                                        bool config_has_errors) {
  const ModelFitCheck* const checks[] = {
#define FTRUN_MODEL_FIT_AXIS(name) &model_fit_checks::name,
#include "axes/axes.inc"
  };
  for (const ModelFitCheck* check : checks) {
    if (config_has_errors && !check->runs_despite_errors) continue;
    if (auto misfit = check->misfit(config, model)) return misfit;
  }
  return std::nullopt;
}

}  // namespace ftrun
