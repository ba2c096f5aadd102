#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/initial_weights.h"
#include "model/description.h"

namespace ftrun {

/// ChangedTensors finds the tensors that training has changed: it compares the export of each
/// trained tensor with its values when training began, piece by piece while the export runs. A
/// tensor without any changed element has not been trained, even if the loss fell: no gradient
/// reached it, the learning rate was 0, or the change is lost in the rounding to the export's
/// dtype.
class ChangedTensors {
 public:
  /// Borrows `model` and `initial`; `dtype` is that of the exported file.
  ChangedTensors(const ModelDescription& model, const InitialWeights& initial, DType dtype);

  /// Compares elements of a tensor from `begin` on. `values` are fp32, before they are rounded to
  /// the file's dtype.
  void compare(const std::string& tensor, int64_t begin, std::span<const float> values);

  /// Returns a warning about tensors that have not changed, and about tensors that the export did
  /// not read and so does not contain; "" where there are none.
  std::string warning() const;

 private:
  enum class TensorChange : uint8_t { kNone, kLostInRounding, kChanged };

  const InitialWeights& initial_;
  DType dtype_;
  std::map<std::string, const TensorInfo*> trained_;
  std::map<std::string, TensorChange> changes_;
  std::vector<float> initial_values_;
};

}  // namespace ftrun
