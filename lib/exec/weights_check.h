#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_folder.h"
#include "model/description.h"
#include "model/tensors.h"

namespace ftrun {

/// Refuses a model folder whose tensors are not those of its config.json, or hold what is not read
/// as weights, with Error(kBadInput). Only headers are read. Inline: commands use it without the
/// engine.
inline void require_weights(const ModelDescription& model, const ModelFolder& folder) {
  std::vector<std::pair<std::string, Dims>> found;
  for (const std::string& name : folder.names()) found.emplace_back(name, folder.at(name).shape);
  const std::vector<std::string> problems = check_tensors(model, found);
  if (!problems.empty())
    throw Error(ExitCode::kBadInput,
                cat(folder.path(), ": the weights are not those of its config.json:\n  ",
                    tensor_problems_text(problems)),
                "use the config.json and the weights of the same model");
  for (const TensorInfo& tensor : model.tensors)
    if (tensor.initial.kind == Initial::Kind::kFolder) folder.require_weight_dtype(tensor.name);
}

}  // namespace ftrun
