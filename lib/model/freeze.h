#pragma once

#include <functional>

#include "model/description.h"

namespace ftrun {

/// Returns the model in which only the tensors that `is_trained` selects are updated
/// (GraphMode::kTrain): layers compute no gradients of the others, and backward ends with the first
/// layer that has any gradients. Tensors of one matrix of the graph are frozen together or not at
/// all; a tied matrix in all layers that read it.
ModelDescription freeze(ModelDescription model,
                        const std::function<bool(const TensorInfo&)>& is_trained);

}  // namespace ftrun
