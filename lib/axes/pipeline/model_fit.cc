#include "axes/model_fit.h"
#include "axes/pipeline/pipeline_config.h"

namespace ftrun {
namespace {

std::optional<ModelFitProblem> pipeline_fit_problem(const Config& config,
                                                    const ModelConfig& model) {
  try {
    check_pipeline(config, model.layers);
  } catch (const Error& error) {
    return ModelFitProblem{
        config.parallel.pipeline_layers.empty() ? "parallel.pipeline" : "parallel.pipeline_layers",
        error};
  }
  return std::nullopt;
}

}  // namespace

constinit const ModelFitCheck model_fit_checks::pipeline{.find_problem = pipeline_fit_problem,
                                                         .runs_despite_errors = false};

}  // namespace ftrun
