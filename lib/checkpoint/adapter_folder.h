#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace ftrun {

/// The metadata key of an adapter's file that holds the config's section quantization as JSON.
/// PEFT's own files have no such key, but an adapter fits only the base weights on which it was
/// trained.
inline constexpr const char* kBaseQuantization = "ftrun.base_quantization";

/// AdapterFolder reads the weights of an adapter in PEFT's layout: adapter_model.safetensors. (Its
/// adapter_config.json is read with the config: config/desugar_adapter.h.)
class AdapterFolder {
 public:
  /// Opens the file. Throws Error(kBadInput) for a missing, damaged or pickled file.
  explicit AdapterFolder(std::string folder);

  const std::string& path() const { return folder_; }
  const std::vector<StoredTensor>& tensors() const { return file_->tensors(); }
  /// Returns the metadata of the file: kBaseQuantization if the adapter was trained on a quantized
  /// base.
  const std::map<std::string, std::string>& metadata() const { return file_->metadata(); }
  /// Finds a tensor by PEFT's name; null if there is none.
  const StoredTensor* find(const std::string& name) const { return file_->find(name); }
  /// Returns whether two tensors of the file have the same bytes.
  bool has_equal_tensors(const std::string& one, const std::string& other) const;
  /// Reads elements [begin, end) from F32, BF16 or F16.
  void read_f32(const std::string& name, int64_t begin, int64_t end, std::span<float> out) const;

 private:
  std::string folder_;
  std::unique_ptr<SafetensorsFile> file_;
};

}  // namespace ftrun
