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
  /// The name of the file's tensor, which is PEFT's: "base_model.model." before the name in the
  /// model's files; the bias of a module with an adapter has the name of its base layer's bias.
  std::string stored_name;
  Dims stored_shape;
  /// The rows of the file's tensor that hold this one; without a name, the tensor is the whole file
  /// tensor.
  StoredLocation location;
};

/// Lists the tensors in PEFT's file of the model's adapter: all that train, a tied matrix under
/// both of its names.
std::vector<AdapterTensor> adapter_tensors(const ModelDescription& model);

}  // namespace ftrun
