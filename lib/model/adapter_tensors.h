#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/description.h"

namespace ftrun {

/// The prefix of the model's name of every tensor in PEFT's files.
inline constexpr std::string_view kAdapterRoot = "base_model.model.";

/// AdapterTensor is a model tensor that an adapter's file holds.
struct AdapterTensor {
  std::string tensor;
  Dims shape;
  /// The file's tensor has PEFT's name and this shape: "base_model.model." before the name in the
  /// model's files; a bias of a module that has an adapter is its base layer's.
  std::string stored;
  Dims stored_shape;
  /// The place in the file's tensor; without a name the tensor is all of it.
  StoredPlace place;
};

/// Lists what PEFT's file of the model's adapter holds: all that trains. A tied matrix is there
/// under both of its names.
std::vector<AdapterTensor> adapter_tensors(const ModelDescription& model);

}  // namespace ftrun
