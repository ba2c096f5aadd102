#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/description.h"

namespace ftrun {

/// Before the model's name of every tensor in PEFT's files.
inline constexpr std::string_view kAdapterRoot = "base_model.model.";

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
