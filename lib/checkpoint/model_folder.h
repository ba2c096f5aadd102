#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/stored_location.h"
#include "checkpoint/quantized_weights.h"
#include "checkpoint/safetensors.h"

namespace ftrun {

/// The maximum size in bytes of a model's config.json that is read; parsing it has the same limit
/// (model/model_config.cc).
inline constexpr int64_t kMaxModelConfig = 4 << 20;

/// The name of the index of a sharded model folder, which names the file of each tensor.
inline constexpr const char* kModelIndex = "model.safetensors.index.json";

/// ModelFolder is a Hugging Face model folder: config.json and model.safetensors, or shards and
/// their index. Weights are mapped, and only the requested parts are read. Readers see a matrix
/// that is stored as codes and scales (quantized_weights.h) as BF16. The folder is not trusted: an
/// index that disagrees with its shards, and names that lead out of the folder, throw
/// Error(kBadInput).
class ModelFolder {
 public:
  explicit ModelFolder(std::string folder);

  /// Renames tensors: `stored_names` maps the new name to the folder's name. Each stored tensor
  /// must exist, and no new name may be the name of another tensor.
  void rename(const std::map<std::string, std::string>& stored_names);

  /// Assigns a name and a shape to a location in one or several tensors of the folder. find() and
  /// the functions that read elements accept this name; names() lists only the folder's own
  /// tensors. The stored tensors must exist with the location's shape.
  void name_part(const std::string& name, std::vector<int64_t> shape, StoredLocation location);

  const std::string& path() const { return folder_; }
  /// Returns the text of config.json.
  const std::string& config_json() const { return config_json_; }
  /// Lists the file names of the weights, in order.
  std::vector<std::string> weight_files() const;
  /// Lists the names of all tensors, sorted.
  std::vector<std::string> names() const;
  /// Finds a tensor by name; null if there is none.
  const StoredTensor* find(std::string_view name) const;
  /// Finds a tensor by name. Throws Error(kBadInput), which names the nearest tensor, for an
  /// unknown name.
  const StoredTensor& at(std::string_view name) const;
  /// Returns the name of the file that holds the tensor.
  const std::string& file_of(std::string_view name) const;
  TensorView tensor(std::string_view name) const;
  /// Throws Error(kBadInput) for a tensor that holds anything but F32, BF16 or F16.
  void check_weight_dtype(std::string_view name) const;

  /// Copies elements [begin, end) of the flattened tensor, converted from F32, BF16 or F16 (to
  /// BF16: to the nearest, ties to even). out.size() is end - begin. Throws Error(kBadInput) if the
  /// tensor is missing, shorter, or has another dtype.
  void read_f32(std::string_view name, int64_t begin, int64_t end, std::span<float> out) const;
  void read_bf16(std::string_view name, int64_t begin, int64_t end, std::span<uint16_t> out) const;
  /// Returns whether two tensors have the same shape and the same values, as read by read_f32().
  bool has_equal_tensors(std::string_view one, std::string_view other) const;
  /// Allows the kernel to drop the pages of elements [begin, end), which are not read again.
  void release(std::string_view name, int64_t begin, int64_t end) const;

  /// Returns whether every weight file still exists and has the length that it had when it was
  /// opened: reading beyond the end of a shortened file would kill the process (SIGBUS).
  bool has_intact_files() const;

  /// Returns the number of tensors that are stored as codes and read as bf16 numbers.
  size_t quantized_tensors() const { return quantized_.size(); }
  /// Returns a hash of config.json and of the name, dtype, shape and location of all tensors, in 16
  /// hexadecimal digits. The weights themselves are not read.
  std::string fingerprint() const;
  /// Returns a hash of samples of the weights, the first and the last 4 KiB of each tensor with its
  /// name, in 16 hexadecimal digits. Different fine-tunes of the same model have different hashes.
  std::string weights_fingerprint() const;

 private:
  struct TensorLocation {
    size_t file;
    const StoredTensor* info;
    /// The quantized matrix if the tensor holds codes; null if it holds numbers.
    const QuantizedWeight* quantized = nullptr;

    const StoredTensor& info_as_read() const { return quantized ? quantized->info() : *info; }
  };
  /// NamedTensorPart is a named part of a stored tensor; `info` holds the part's name and shape.
  struct NamedTensorPart {
    StoredTensor info;
    StoredLocation location;
  };

  void find_quantized_tensors();
  void open_single();
  void open_sharded();
  void add_shard(const std::string& file, const std::map<std::string, std::string>& weight_map);
  const TensorLocation& locate(std::string_view name) const;
  const std::byte* element_address(std::string_view name, int64_t begin, int64_t end,
                                   size_t out_size) const;
  const NamedTensorPart* find_part(std::string_view name) const;
  /// Reads elements [begin, end) of a part. `read(name, from, to, out)` reads and converts elements
  /// [from, to) of the stored tensor `name`.
  template <class T, class Read>
  void read_part(const NamedTensorPart& part, int64_t begin, int64_t end, std::span<T> out,
                 Read read) const;

  std::string folder_;
  std::string config_json_;
  std::vector<std::string> file_names_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorLocation, std::less<>> tensors_;
  std::map<std::string, NamedTensorPart, std::less<>> parts_;
  std::vector<std::unique_ptr<QuantizedWeight>> quantized_;
};

}  // namespace ftrun
