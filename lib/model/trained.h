#pragma once

#include <string>
#include <vector>

#include "base/adapter_choices.h"
#include "model/description.h"

namespace ftrun {

/// TrainedOptions says which tensors of a model train.
struct TrainedOptions {
  /// The model has adapters: they train, and of its own tensors only what is named here.
  bool adapter = false;
  AdapterBias bias = AdapterBias::kNone;
  /// Modules whose weights train whole beside adapters: the end of a module's path.
  std::vector<std::string> modules_to_save;
  /// Regular expressions of a part of a tensor's name: those that do not train, and, if any, the
  /// only ones that do.
  std::vector<std::string> freeze;
  std::vector<std::string> only;
  bool operator==(const TrainedOptions&) const = default;
};

/// Returns the training model in which only the chosen tensors are updated (model/freeze.h).
/// Refuses options with one Error(kUsage) that lists all problems: expressions that are broken or
/// choose nothing, modules that do not exist, parts of one matrix of a graph that are chosen apart,
/// nothing that trains.
ModelDescription choose_trained(ModelDescription model, const TrainedOptions& options);

/// Returns the training model whose embedding takes no gradient for the row of `token` from the
/// tokens that are read, as torch's padding_idx does; a tied output matrix still gives that row its
/// gradient.
ModelDescription without_row_gradient(ModelDescription model, int64_t token);

}  // namespace ftrun
