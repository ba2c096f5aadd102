#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "base/dtype.h"
#include "base/file.h"

namespace ftrun {

/// TensorSpec describes a tensor that will be written.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// WrittenFile holds the checksums of a file that was written: XXH3 of the whole file, of
/// everything before the data, and of each tensor in the order of SafetensorsWriter::tensors().
struct WrittenFile {
  int64_t bytes = 0;
  uint64_t header_xxh3 = 0;
  uint64_t xxh3 = 0;
  std::vector<uint64_t> tensor_xxh3;
};

/// Sorts tensors in the order in which the safetensors library stores them: widest dtype first,
/// then by name.
void sort_as_stored(std::vector<TensorSpec>& tensors);

/// Returns the length and the JSON of the header, padded with spaces to a multiple of 8, for
/// tensors in stored order; "format": "pt" is added to the metadata.
std::string safetensors_header(const std::vector<TensorSpec>& tensors,
                               std::map<std::string, std::string> metadata);

/// SafetensorsWriter writes one safetensors file front to back, in pieces of any size. The whole
/// size is reserved before the first byte, so that a full disk is noticed at once. With a staging
/// area, which must stay valid until finish() and is used for this file only, it writes as a
/// StreamedFile does. Throws the file system's Error(kEnvironment); a wrong order or amount of data
/// is a bug of the caller.
class SafetensorsWriter {
 public:
  SafetensorsWriter(FileSystem& files, const std::string& path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {},
                    std::span<std::byte> staging = {});

  /// Returns the tensors in the order in which their data must be appended.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  /// Appends the next bytes of tensor `name`.
  void append(std::string_view name, std::span<const std::byte> bytes);
  /// Syncs and closes the file; every tensor must be complete.
  WrittenFile finish();

 private:
  void begin_next();

  std::vector<TensorSpec> tensors_;
  std::unique_ptr<WritableFile> file_;
  Xxh3Stream file_hash_;
  std::unique_ptr<Xxh3Stream> tensor_;
  size_t next_tensor_ = 0;
  int64_t missing_bytes_ = 0;
  WrittenFile written_;
};

}  // namespace ftrun
