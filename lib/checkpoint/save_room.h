#pragma once

#include <cstddef>
#include <span>

namespace ftrun {

/// The memory by way of which a rank writes its checkpoints and reads them back: of one size for
/// any model, so that what a save takes is known beforehand. It serves one save at a time.
class SaveRoom {
 public:
  /// `file_bytes` of it for pieces of the file (a multiple of 4 x 4096). Error(kEnvironment) where
  /// there is no memory.
  explicit SaveRoom(size_t file_bytes = 4 << 20);
  ~SaveRoom();
  SaveRoom(const SaveRoom&) = delete;
  SaveRoom& operator=(const SaveRoom&) = delete;

  /// Has the kernel give all of its pages now.
  void populate();

  /// The memory of a StreamedFile.
  std::span<std::byte> file() const { return {data_, file_bytes_}; }
  /// The memory of values that do not lie in memory, on their way to the file.
  std::span<std::byte> values() const { return {data_ + file_bytes_, kValuesBytes}; }
  /// The memory of the sectors that hold as many values, on their way from a disk.
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
