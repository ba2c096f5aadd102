#pragma once

#include <string>
#include <vector>

#include "base/adapter_choices.h"
#include "model/description.h"

namespace ftrun {

/// TrainedOptions say which tensors of a model train.
struct TrainedOptions {
  /// The model has adapters: they train, and of its own tensors only what is named here.
  bool adapter = false;
  AdapterBias bias = AdapterBias::kNone;
  /// Modules whose weights train whole beside adapters: the end of a module's path.
  std::vector<std::string> modules_to_save;
  /// Regular expressions of a part of a tensor's name: those that do not train, and, if
  /// any, those that alone do.
  std::vector<std::string> freeze;
  std::vector<std::string> only;
  bool operator==(const TrainedOptions&) const = default;
};

/// The training model in which only those tensors are updated (model/freeze.h).
/// Error(kUsage) with all that is wrong:
/// expressions that are broken or choose nothing, modules that are not there, parts of one matrix
/// of a graph that are chosen apart, nothing that trains.
ModelDescription choose_trained(ModelDescription model, const TrainedOptions& options);

/// The training model whose embedding takes no gradient for the row of `token` from the tokens that
/// are read, as torch's padding_idx has it; a tied output matrix gives that row its gradient all
/// the same.
ModelDescription without_row_gradient(ModelDescription model, int64_t token);

}  // namespace ftrun
