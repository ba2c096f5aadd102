#pragma once

#include <cstddef>
#include <span>

namespace ftrun {

/// SaveBuffers is the memory through which a rank writes its checkpoints and reads them back. Its
/// size does not depend on the model, so the memory of a save is known beforehand. It serves one
/// save at a time.
class SaveBuffers {
 public:
  /// Reserves the memory, `file_bytes` of it for pieces of the file (a multiple of 4 x 4096).
  /// Throws Error(kEnvironment) if there is not enough.
  explicit SaveBuffers(size_t file_bytes = 4 << 20);
  ~SaveBuffers();
  SaveBuffers(const SaveBuffers&) = delete;
  SaveBuffers& operator=(const SaveBuffers&) = delete;

  /// Makes the kernel allocate all pages of the memory now.
  void allocate_pages();

  /// Returns the staging area of the StreamedFile.
  std::span<std::byte> file() const { return {data_, file_bytes_}; }
  /// Returns the memory through which values of the disk tier are copied to the file.
  std::span<std::byte> values() const { return {data_ + file_bytes_, kValuesBytes}; }
  /// Returns the memory for the disk sectors that hold as many values as values().
  std::span<std::byte> sectors() const {
    return {data_ + file_bytes_ + kValuesBytes, kSectorsBytes};
  }

 private:
  static constexpr size_t kValuesBytes = 1 << 20;
  static constexpr size_t kSectorsBytes = kValuesBytes + 2 * 4096;
  size_t bytes() const { return file_bytes_ + kValuesBytes + kSectorsBytes; }

  size_t file_bytes_;
  std::byte* mapped_;
  std::byte* data_;
};

}  // namespace ftrun
