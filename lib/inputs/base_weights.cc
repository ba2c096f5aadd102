#include "inputs/base_weights.h"

#include <algorithm>

#include "base/round_up.h"

namespace ftrun {
namespace {

/// The largest number of elements that is read at once.
constexpr int64_t kElementsAtOnce = int64_t{1} << 18;

}  // namespace

BaseWeights::BaseWeights(const ModelDescription& model, const ModelFolder& folder)
    : format_(model.dtypes.quantized), folder_(folder) {
  for (const Layer& layer : model.layers)
    for (const GraphParam& param : layer.params)
      for (const TensorId id : param.tensors)
        if (param.quantized) quantized_[model.tensor(id).name] = model.tensor(id).shape;
}

void BaseWeights::read(const std::string& tensor, int64_t begin, int64_t end,
                       std::span<float> out) {
  const auto found = quantized_.find(tensor);
  if (found == quantized_.end()) return read_stored(tensor, begin, end, out);
  if (tensor != scaled_tensor_) compute_scales(tensor, found->second);
  const int64_t elements = element_count(found->second);
  for (int64_t at = begin; at < end;) {
    const int64_t first = at / kQuantizedRecord * kQuantizedRecord,
                  to = std::min(end, first + kElementsAtOnce);
    const int64_t last = std::min(elements, round_up(to, kQuantizedRecord));
    const std::span<float> values(values_.data(), static_cast<size_t>(last - first));
    read_stored(tensor, first, last, values);
    quantize_values(format_, *scales_, first, values, 0, records_.data());
    dequantize_values(format_, records_.data(), at - first,
                      out.subspan(static_cast<size_t>(at - begin), static_cast<size_t>(to - at)));
    at = to;
  }
}

/// Reads elements of a memory-mapped file and then releases its pages, which otherwise count as
/// memory of this process.
void BaseWeights::read_stored(const std::string& tensor, int64_t begin, int64_t end,
                              std::span<float> out) const {
  folder_.read_f32(tensor, begin, end, out);
  folder_.release(tensor, begin, end);
}

void BaseWeights::compute_scales(const std::string& tensor, const Dims& shape) {
  scaled_tensor_ = tensor;
  values_.resize(static_cast<size_t>(kElementsAtOnce));
  records_.resize(static_cast<size_t>(format_.bytes(kElementsAtOnce)));
  scales_ = compute_quantization_scales(format_, {tensor, element_count(shape), shape.back()},
                                        kElementsAtOnce, [&](int64_t begin, int64_t end) {
                                          const std::span<float> values(
                                              values_.data(), static_cast<size_t>(end - begin));
                                          read_stored(tensor, begin, end, values);
                                          return std::span<const float>(values);
                                        });
}

}  // namespace ftrun
