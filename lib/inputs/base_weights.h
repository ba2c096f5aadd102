#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/quantized_values.h"
#include "checkpoint/model_folder.h"
#include "model/description.h"

namespace ftrun {

/// BaseWeights reads the weights of a model folder with the values that training uses: for
/// quantized tensors, the numbers that their codes stand for.
class BaseWeights {
 public:
  /// Finds the quantized tensors of `model`. `folder` is borrowed.
  BaseWeights(const ModelDescription& model, const ModelFolder& folder);

  /// Reads elements [begin, end) of a tensor in fp32. Read the tensors one after the other: the
  /// scales of a quantized tensor are computed by reading it whole.
  void read(const std::string& tensor, int64_t begin, int64_t end, std::span<float> out);

 private:
  void read_stored(const std::string& tensor, int64_t begin, int64_t end,
                   std::span<float> out) const;
  void compute_scales(const std::string& tensor, const Dims& shape);

  const QuantizedFormat format_;
  const ModelFolder& folder_;
  std::map<std::string, Dims> quantized_;
  std::vector<float> values_;
  std::vector<std::byte> records_;
  /// The tensor whose scales are in scales_.
  std::string scaled_tensor_;
  std::optional<QuantizationScales> scales_;
};

}  // namespace ftrun
