#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/model_folder.h"
#include "model/description.h"

namespace ftrun {

/// Elements [begin, end) of a tensor that is made when training begins (Initial::Kind but kFolder): a function of seed, name
/// and place alone, the same for every layout.
void make_elements(const TensorInfo& tensor, uint64_t seed, int64_t begin, int64_t end, std::span<float> out);

/// What the tensors of a model hold when training begins, and always where they are frozen.
class FirstWeights {
 public:
  /// All borrowed; `adapter`, if any, comes before `folder`.
  FirstWeights(const ModelFolder& folder, uint64_t seed = 0, const AdapterFolder* adapter = nullptr)
      : folder_(folder), seed_(seed), adapter_(adapter) {}

  /// Error(kBadInput) with every tensor that is missing, unknown or misshapen.
  void require_fit(const ModelDescription& model);
  /// Elements [begin, end) of a tensor in fp32.
  void read(const TensorInfo& tensor, int64_t begin, int64_t end, std::span<float> out) const;
  /// Elements that were read for the last time.
  void release(const TensorInfo& tensor, int64_t begin, int64_t end) const;

 private:
  const ModelFolder& folder_;
  uint64_t seed_;
  const AdapterFolder* adapter_;
  /// Names of the tensors in `adapter_`, by the model's: after require_fit().
  std::map<std::string, std::string> stored_;
};

}  // namespace ftrun
