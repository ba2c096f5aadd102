#pragma once

#include <string>
#include <vector>

#include "base/adapter_choices.h"
#include "model/description.h"

namespace ftrun {

/// TrainedTensorOptions specifies which tensors of a model train.
struct TrainedTensorOptions {
  /// Says whether the model has adapters, which train; of the model's own tensors only those named
  /// here do.
  bool adapter = false;
  AdapterBias bias = AdapterBias::kNone;
  /// The modules that train whole in addition to adapters, given by the end of their paths.
  std::vector<std::string> modules_to_save;
  /// Regular expressions of a part of a tensor's name: tensors that do not train, and, if any are
  /// given, the only ones that do.
  std::vector<std::string> freeze;
  std::vector<std::string> only;
  bool operator==(const TrainedTensorOptions&) const = default;
};

/// Returns the training model in which only the chosen tensors are updated (model/freeze.h). Throws
/// one Error(kUsage) that lists all problems: expressions that are invalid or match nothing,
/// modules that do not exist, a matrix of a graph of which only a part is chosen, no tensor that
/// trains.
ModelDescription choose_trained_tensors(ModelDescription model,
                                        const TrainedTensorOptions& options);

/// Returns the training model whose embedding row of `token` gets no gradient from the tokens that
/// are read, as with torch's padding_idx; a tied output matrix still gives that row its gradient.
ModelDescription without_row_gradient(ModelDescription model, int64_t token);

}  // namespace ftrun
