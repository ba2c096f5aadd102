#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/description.h"

namespace ftrun {

/// The prefix that PEFT's files put before the model's name of every tensor.
inline constexpr std::string_view kAdapterRoot = "base_model.model.";

/// AdapterTensor is a model tensor that an adapter's file holds.
struct AdapterTensor {
  std::string tensor;
  Dims shape;
  /// The file's tensor has PEFT's name and this shape: "base_model.model." before the name in the
  /// model's files; the bias of a module with an adapter is that of its base layer.
  std::string stored;
  Dims stored_shape;
  /// The place in the file's tensor; without a name the tensor is all of it.
  StoredPlace place;
};

/// Lists the tensors that PEFT's file of the model's adapter holds: all that train, a tied matrix
/// under both of its names.
std::vector<AdapterTensor> adapter_tensors(const ModelDescription& model);

}  // namespace ftrun
