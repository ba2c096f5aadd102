#include "axes/model_fit.h"
#include "axes/tensor/split.h"
#include "axes/tensor/tensor_config.h"
#include "config/ranks.h"

namespace ftrun {
namespace {

std::optional<ModelFitProblem> tensor_fit_problem(const Config& config, const ModelConfig& model) {
  // A number of ranks that is too large is reported by another check.
  if (model_ranks(config.parallel) == 0) return std::nullopt;
  try {
    check_tensor_split(model, tensor_split(config));
  } catch (const Error& error) {
    return ModelFitProblem{"parallel.tensor", error};
  }
  return std::nullopt;
}

}  // namespace

constinit const ModelFitCheck model_fit_checks::tensor{.find_problem = tensor_fit_problem,
                                                       .runs_despite_errors = true};

}  // namespace ftrun
