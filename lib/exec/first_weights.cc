#include "exec/first_weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/checksum.h"
#include "base/error.h"
#include "base/mix_bits.h"
#include "exec/weights_check.h"

namespace ftrun {
namespace {

/// In [0, 1), 24 bits.
double unit(uint64_t bits) { return static_cast<double>(bits >> 40) * 0x1p-24; }

}  // namespace

void make_elements(const TensorInfo& tensor, uint64_t seed, int64_t begin, int64_t end, std::span<float> out) {
  require(static_cast<int64_t>(out.size()) == end - begin, "elements of the tensor");
  const uint64_t key = splitmix64(seed ^ splitmix64(xxh3(tensor.name.data(), tensor.name.size())));
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t bits = splitmix64(key ^ static_cast<uint64_t>(i));
    double value = 0;
    if (tensor.initial.kind == Initial::Kind::kUniform) value = tensor.initial.size * (2 * unit(bits) - 1);
    if (tensor.initial.kind == Initial::Kind::kNormal)  // Box and Muller
      value = tensor.initial.size * std::sqrt(-2 * std::log(1 - unit(bits))) * std::cos(2 * std::numbers::pi * unit(splitmix64(bits)));
    out[static_cast<size_t>(i - begin)] = static_cast<float>(value);
  }
}

void FirstWeights::require_fit(const ModelDescription& model) {
  require_weights(model, folder_);
  if (adapter_ != nullptr) stored_ = require_adapter(model, *adapter_);
}

void FirstWeights::read(const TensorInfo& tensor, int64_t begin, int64_t end, std::span<float> out) const {
  if (const auto stored = stored_.find(tensor.name); stored != stored_.end())
    return adapter_->read_f32(stored->second, begin, end, out);
  if (tensor.initial.kind != Initial::Kind::kFolder) return make_elements(tensor, seed_, begin, end, out);
  folder_.read_f32(tensor.name, begin, end, out);
}

void FirstWeights::release(const TensorInfo& tensor, int64_t begin, int64_t end) const {
  if (tensor.initial.kind == Initial::Kind::kFolder) folder_.release(tensor.name, begin, end);
}

}  // namespace ftrun
