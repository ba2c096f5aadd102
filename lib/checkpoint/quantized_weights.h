#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"

namespace ftrun {

/// QuantizedWeight is a matrix that a folder stores as codes and scales. All readers get its
/// numbers rounded to bf16.
class QuantizedWeight {
 public:
  virtual ~QuantizedWeight() = default;

  /// Returns the tensor that the matrix represents: its name, its shape, and BF16.
  const StoredTensor& info() const { return info_; }
  /// Writes elements [begin, end) of the flattened matrix in fp32, rounded to bf16.
  void read(int64_t begin, int64_t end, std::span<float> out) const;
  /// Returns a small range of stored codes that contains elements [begin, end).
  virtual std::pair<int64_t, int64_t> codes_of(int64_t begin, int64_t end) const = 0;

 protected:
  explicit QuantizedWeight(StoredTensor info) : info_(std::move(info)) {}
  /// Writes codes times scales in fp32, without the rounding to bf16.
  virtual void read_exact(int64_t begin, int64_t end, float* out) const = 0;

 private:
  StoredTensor info_;
};

/// EncodedTensor is a tensor in the form in which a folder stores it.
struct EncodedTensor {
  const StoredTensor* info = nullptr;
  std::span<const std::byte> bytes;
  /// The path of its file.
  std::string path;
};
/// FindStoredTensor finds a stored tensor by its name; nothing if the folder has none.
using FindStoredTensor = std::function<std::optional<EncodedTensor>(const std::string& name)>;

/// QuantizedWeights holds the matrices of a folder that are stored as codes.
struct QuantizedWeights {
  /// The matrices, each by the name of the tensor that holds its codes.
  std::map<std::string, std::unique_ptr<QuantizedWeight>> matrices;
  /// The tensors that hold scales, tables and the like, which are not weights of the model.
  std::vector<std::string> companions;
};

/// Finds the matrices among `names` that are stored as codes, according to config.json's
/// quantization_config:
///  * "fp8": F8_E4M3 codes and `NAME_scale_inv`, a scale for each block of weight_block_size (one
///    for all of them if there is no block size), as DeepSeek-V3 and Qwen3 are published;
///  * "bitsandbytes": 4-bit codes (nf4, fp4; double quantization too) as its QuantState
///    writes them, and 8-bit rows with `SCB`.
/// `config_json` is the text of config.json, `path` its path. Returns nothing for a model without
/// quantization_config or with another method, which parse_model_config() refuses. The bytes are
/// borrowed. Throws Error(kBadInput) naming the tensor whose scales or state are missing or do not
/// fit.
QuantizedWeights find_quantized_weights(const std::string& config_json, const std::string& path,
                                        const std::vector<std::string>& names,
                                        const FindStoredTensor& find);

}  // namespace ftrun
