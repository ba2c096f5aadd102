#pragma once

#include <string>
#include <vector>

#include "model/description.h"

namespace ftrun {

/// A tensor of an adapter's file: by the model's name and by PEFT's.
struct AdapterTensor {
  std::string tensor;
  /// "base_model.model." before the model's name; a bias of a module that has an adapter is its base layer's.
  std::string stored;
  Dims shape;
};

/// What PEFT's file of the model's adapter holds: all that trains. A tied matrix is there under both of its names.
std::vector<AdapterTensor> adapter_tensors(const ModelDescription& model);

}  // namespace ftrun
