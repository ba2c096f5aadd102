#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/description.h"

namespace ftrun {

/// A tensor of an adapter's file: by the model's name and by PEFT's.
struct AdapterTensor {
  std::string tensor;
  /// "base_model.model." before the model's name; a bias of a module that has an adapter is its base layer's.
  std::string stored;
  Dims shape;
};

/// What PEFT's file of the model's adapter holds: all that trains. A tied matrix is there under both of its names.
std::vector<AdapterTensor> adapter_tensors(const ModelDescription& model);

/// An adapter in PEFT's layout: adapter_model.safetensors. (Its adapter_config.json is read with the config:
/// config/desugar_adapter.h.)
class AdapterFolder {
 public:
  /// Error(kBadInput) when there is no such file, or one that is damaged or holds pickled weights.
  explicit AdapterFolder(std::string folder);

  const std::string& path() const { return folder_; }
  /// Error(kBadInput) with every tensor that is missing, misshapen, of another dtype than F32, BF16 and F16, or not one
  /// that trains in `model`.
  void require_fits(const ModelDescription& model);
  /// After require_fits().
  bool holds(const std::string& tensor) const { return stored_.contains(tensor); }
  /// Elements [begin, end) of a tensor by the model's name.
  void read_f32(const std::string& tensor, int64_t begin, int64_t end, std::span<float> out) const;

 private:
  std::string folder_;
  std::unique_ptr<SafetensorsFile> file_;
  /// Names in the file, by the model's.
  std::map<std::string, std::string> stored_;
};

}  // namespace ftrun
