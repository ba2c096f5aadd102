#include "program/model_fit.h"

#include "config/ranks.h"
#include "model/tensor_split.h"
#include "program/pipeline_plan.h"

namespace ftrun {

std::optional<ModelMisfit> tensor_misfit(const Config& config, const ModelConfig& model) {
  // Another check reports more ranks than there can be.
  if (model_ranks(config.parallel) == 0) return std::nullopt;
  try {
    require_tensor_split(model,
                         {static_cast<int>(config.parallel.tensor), 0, config.parallel.sequence});
  } catch (const Error& error) {
    return ModelMisfit{"parallel.tensor", error};
  }
  return std::nullopt;
}

std::optional<ModelMisfit> model_misfit(const Config& config, const ModelConfig& model) {
  if (auto misfit = tensor_misfit(config, model)) return misfit;
  try {
    require_pipeline(config, model.layers);
  } catch (const Error& error) {
    return ModelMisfit{
        config.parallel.pipeline_layers.empty() ? "parallel.pipeline" : "parallel.pipeline_layers",
        error};
  }
  return std::nullopt;
}

}  // namespace ftrun
