#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/first_weights.h"
#include "model/description.h"

namespace ftrun {

/// MovedTensors compares the export of each trained tensor with its values when training began,
/// piece by piece while the export passes. A tensor whose every element is unchanged has not been
/// trained, whatever the loss says: no gradient reached it, the learning rate was 0, or the change
/// is smaller than the export's dtype holds.
class MovedTensors {
 public:
  /// Borrows `model` and `first`; `dtype` is that of the exported file.
  MovedTensors(const ModelDescription& model, const FirstWeights& first, DType dtype);

  /// Compares elements of a tensor from `begin` on, in fp32 before they are rounded.
  void compare(const std::string& tensor, int64_t begin, std::span<const float> values);

  /// Makes a warning about tensors that have not moved, and about those that the export never asked
  /// for and so does not hold; "" where there are none.
  std::string warning() const;

 private:
  enum class Movement : uint8_t { kUnmoved, kLostInRounding, kMoved };

  const FirstWeights& first_;
  DType dtype_;
  std::map<std::string, const TensorInfo*> trained_;
  std::map<std::string, Movement> states_;
  std::vector<float> before_;
};

}  // namespace ftrun
