#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/packed_values.h"
#include "base/round_up.h"
#include "checkpoint/model_folder.h"
#include "model/description.h"

namespace ftrun {

/// The weights of a model folder as they are trained on: of those that are packed, the numbers that
/// their codes stand for. Inline: commands use it without the engine.
class BaseWeights {
 public:
  /// `folder` is borrowed.
  BaseWeights(const ModelDescription& model, const ModelFolder& folder) : format_(model.dtypes.packed), folder_(folder) {
    for (const Layer& layer : model.layers)
      for (const GraphParam& param : layer.params)
        for (const TensorId id : param.tensors)
          if (param.packed) packed_[model.tensor(id).name] = model.tensor(id).shape;
  }

  /// Elements [begin, end) of a tensor in fp32. One tensor after the other: the scales of a packed
  /// one are found by reading it whole.
  void read(const std::string& tensor, int64_t begin, int64_t end, std::span<float> out) {
    const auto found = packed_.find(tensor);
    if (found == packed_.end()) return read_stored(tensor, begin, end, out);
    if (tensor != tensor_) scan(tensor, found->second);
    const int64_t elements = element_count(found->second);
    for (int64_t at = begin; at < end;) {
      const int64_t first = at / kPackedRecord * kPackedRecord, to = std::min(end, first + kPart);
      const int64_t last = std::min(elements, round_up(to, kPackedRecord));
      const std::span<float> values(values_.data(), static_cast<size_t>(last - first));
      read_stored(tensor, first, last, values);
      pack_values(format_, *scales_, first, values, 0, records_.data());
      unpack_values(format_, records_.data(), at - first, out.subspan(static_cast<size_t>(at - begin), static_cast<size_t>(to - at)));
      at = to;
    }
  }

 private:
  static constexpr int64_t kPart = int64_t{1} << 18;

  /// Reads a part of a mapped file, which is memory of this process until it is released.
  void read_stored(const std::string& tensor, int64_t begin, int64_t end, std::span<float> out) const {
    folder_.read_f32(tensor, begin, end, out);
    folder_.release(tensor, begin, end);
  }

  void scan(const std::string& tensor, const Dims& shape) {
    tensor_ = tensor;
    values_.resize(static_cast<size_t>(kPart));
    records_.resize(static_cast<size_t>(format_.bytes(kPart)));
    scales_ = scales_of(format_, {tensor, element_count(shape), shape.back()}, kPart, [&](int64_t begin, int64_t end) {
      const std::span<float> some(values_.data(), static_cast<size_t>(end - begin));
      read_stored(tensor, begin, end, some);
      return std::span<const float>(some);
    });
  }

  const PackedFormat format_;
  const ModelFolder& folder_;
  std::map<std::string, Dims> packed_;
  std::vector<float> values_;
  std::vector<std::byte> records_;
  /// The tensor that is read.
  std::string tensor_;
  std::optional<PackScales> scales_;
};

}  // namespace ftrun
