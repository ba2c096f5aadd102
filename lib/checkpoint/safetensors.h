#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace ftrun {

/// The longest header in bytes that is read (the format's own limit).
inline constexpr int64_t kLongestSafetensorsHeader = 100'000'000;

/// StoredTensor is one tensor as a safetensors header describes it.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  /// The shape; [] is a scalar, and a 0 makes an empty tensor.
  std::vector<int64_t> shape;
  /// The product of the shape's dimensions.
  int64_t elements = 0;
  /// The range of bytes [begin, end) in the data part.
  int64_t begin = 0;
  int64_t end = 0;
};

/// SafetensorsHeader is the content of a header, after every check.
struct SafetensorsHeader {
  /// The number of bytes before the data part: 8 + length of the JSON.
  int64_t data_offset = 0;
  /// The tensors in the order of their data.
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header of a whole file in memory. The content is not trusted: lengths are
/// checked before use, products for overflow, names for validity, and the tensors must cover the
/// data without gaps or overlaps. Throws Error(kBadInput) naming `path` and, if there is one, the
/// tensor.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& path);

/// Returns the reason why `name` cannot be a tensor's name ("it is empty", ...), or "".
std::string tensor_name_problem(std::string_view name);

/// Computes the product of a shape. Throws Error(kBadInput), with a message that begins with
/// `what`, if a dimension is negative or the product does not fit.
int64_t checked_elements(const std::vector<int64_t>& shape, const std::string& what);

/// Formats a shape: "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

/// TensorView is the bytes of a tensor in the mapped file, which may have any alignment.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

/// SafetensorsFile is a mapped safetensors file; pages are read when they are touched.
class SafetensorsFile {
 public:
  /// Maps the file and checks its header. Throws Error(kBadInput) naming file and tensor if
  /// anything is wrong.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t file_bytes() const { return static_cast<int64_t>(file_.bytes().size()); }
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Finds a tensor by name; null if there is none.
  const StoredTensor* find(std::string_view name) const;
  /// Finds a tensor by name. Throws Error(kBadInput), which names the nearest tensor, for an
  /// unknown name.
  const StoredTensor& at(std::string_view name) const;
  TensorView tensor(std::string_view name) const;
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;
  /// Computes the XXH3 of everything before the data.
  uint64_t header_xxh3() const;
  /// Allows the kernel to drop the pages of elements [begin, end), which are not read again.
  void release(const StoredTensor& tensor, int64_t begin, int64_t end) const;
  int64_t data_bytes() const { return file_bytes() - header_.data_offset; }
  /// Asks the kernel to begin reading bytes [begin, end) of the data, and does not wait.
  void read_ahead(int64_t begin, int64_t end) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::vector<size_t> by_name_;  // indices into tensors(), sorted by name
};

}  // namespace ftrun
