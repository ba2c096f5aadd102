#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/stored_place.h"
#include "checkpoint/quantized_weights.h"
#include "checkpoint/safetensors.h"

namespace ftrun {

/// Most bytes of a model's config.json that are read; parsing it has the same limit
/// (model/config.cc).
inline constexpr int64_t kLargestModelConfig = 4 << 20;

/// The index of a sharded model folder: it names the file that holds each tensor.
inline constexpr const char* kModelIndex = "model.safetensors.index.json";

/// ModelFolder is a Hugging Face model folder: config.json and model.safetensors, or shards and
/// their index. Weights are mapped, and only the parts asked for are read. A matrix that is stored
/// as codes and scales (quantized_weights.h) appears as BF16 to all readers. Nothing in the folder
/// is trusted: an index that disagrees with its shards and names that leave the folder are refused
/// with Error(kBadInput).
class ModelFolder {
 public:
  explicit ModelFolder(std::string folder);

  /// Renames tensors: `stored` gives the folder's name by the new one. Each stored tensor exists,
  /// and no new name is another tensor's.
  void rename(const std::map<std::string, std::string>& stored);

  /// Gives a place of one or several tensors of the folder a name and a shape of its own, by which
  /// find() and the functions that read elements know it; names() lists the folder's own tensors.
  /// The stored tensors exist, in the place's shape.
  void name_part(const std::string& name, std::vector<int64_t> shape, StoredPlace place);

  const std::string& path() const { return folder_; }
  /// Returns the text of config.json.
  const std::string& config_json() const { return config_json_; }
  /// Lists the file names of the weights, in order.
  std::vector<std::string> weight_files() const;
  /// Lists the names of all tensors, sorted.
  std::vector<std::string> names() const;
  /// Finds a tensor by name; null when there is none.
  const StoredTensor* find(std::string_view name) const;
  /// Finds a tensor by name. Refuses an unknown name with Error(kBadInput), which names the nearest
  /// tensor.
  const StoredTensor& at(std::string_view name) const;
  /// Returns the name of the file that holds the tensor.
  const std::string& file_of(std::string_view name) const;
  TensorView tensor(std::string_view name) const;
  /// Refuses a tensor that holds anything but F32, BF16 or F16, with Error(kBadInput).
  void require_weight_dtype(std::string_view name) const;

  /// Copies elements [begin, end) of the flattened tensor, converted from F32, BF16 or F16 (to
  /// BF16: nearest, ties to even). out.size() is end - begin. Error(kBadInput) when the tensor is
  /// missing, shorter, or holds another dtype.
  void read_f32(std::string_view name, int64_t begin, int64_t end, std::span<float> out) const;
  void read_bf16(std::string_view name, int64_t begin, int64_t end, std::span<uint16_t> out) const;
  /// Says whether two tensors have the same shape and the same values, as read by read_f32().
  bool holds_equal(std::string_view one, std::string_view other) const;
  /// Lets the kernel drop the pages of elements [begin, end), which were read for the last time.
  void release(std::string_view name, int64_t begin, int64_t end) const;

  /// Says whether every weight file still exists and is as long as when it was opened: reading
  /// beyond the end of one that was cut short ends the process.
  bool is_as_long() const;

  /// Counts the tensors whose codes are read as the numbers that they stand for.
  size_t quantized_tensors() const { return quantized_.size(); }
  /// Returns 16 hexadecimal digits that change with config.json and with the name, dtype, shape or
  /// place of any tensor. The weights themselves are not read.
  std::string fingerprint() const;
  /// Returns 16 hexadecimal digits of samples of the weights: the first and the last 4 KiB of each
  /// tensor, with its name. Another fine-tune of the same model has others.
  std::string weights_fingerprint() const;

 private:
  struct TensorPlace {
    size_t file;
    const StoredTensor* info;
    /// The matrix that the tensor's codes stand for; null for a tensor of numbers.
    const QuantizedWeight* quantized = nullptr;

    const StoredTensor& shown() const { return quantized ? quantized->info() : *info; }
  };
  /// NamedPart is a named part of a stored tensor; `info` has its own name and shape.
  struct NamedPart {
    StoredTensor info;
    StoredPlace place;
  };

  void find_quantized();
  void open_single();
  void open_sharded();
  void add_shard(const std::string& file, const std::map<std::string, std::string>& weight_map);
  const TensorPlace& place(std::string_view name) const;
  const std::byte* source(std::string_view name, int64_t begin, int64_t end, size_t room) const;
  const NamedPart* part(std::string_view name) const;
  /// Reads elements [begin, end) of a part; `read(name, from, to, out)` converts a run of a stored
  /// tensor.
  template <class T, class Read>
  void read_part(const NamedPart& part, int64_t begin, int64_t end, std::span<T> out,
                 Read read) const;

  std::string folder_;
  std::string config_json_;
  std::vector<std::string> file_names_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorPlace, std::less<>> tensors_;
  std::map<std::string, NamedPart, std::less<>> parts_;
  std::vector<std::unique_ptr<QuantizedWeight>> quantized_;
};

}  // namespace ftrun
